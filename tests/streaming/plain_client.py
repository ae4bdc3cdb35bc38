"""Clients of the stream server, written from its documentation.

From docs/streaming-protocol.md alone, with no module of the package.
"""

from __future__ import annotations

import json
import struct
from types import TracebackType
from typing import Any

import aiohttp


class SocketClient:
    """A viewer on the WebSocket.

    It acknowledges every picture, and keeps what it is sent.

    Args:
        address: Of the server, such as "http://localhost:8080".
        token: What lets it in, if anything is needed.
    """

    def __init__(self, address: str, token: str | None = None) -> None:
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        self._http = aiohttp.ClientSession(address, headers=headers, timeout=aiohttp.ClientTimeout(20))
        self.socket: Any = None
        self.role = ""
        self.streams: list[dict[str, Any]] = []
        self.state: dict[str, Any] = {}
        self.errors: list[str] = []
        self.pongs: list[dict[str, Any]] = []
        self.pictures: list[tuple[dict[str, Any], bytes]] = []
        self.close_code: int | None = None

    async def __aenter__(self) -> SocketClient:
        self.socket = await self._http.ws_connect("/ws")
        while not self.role:
            await self.hear()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.socket.close()
        await self._http.close()

    async def say(self, kind: str, **fields: Any) -> None:
        await self.socket.send_str(json.dumps({"type": kind, **fields}))

    async def hear(self) -> bool:
        """Take the next message in.

        Returns false where the server has closed instead.
        """
        message = await self.socket.receive(20)
        if message.type is aiohttp.WSMsgType.BINARY:
            header, payload = take_apart(message.data)
            self.pictures.append((header, payload))
            await self.say("ack", seq=header["seq"])
            return True
        if message.type is not aiohttp.WSMsgType.TEXT:
            self.close_code = self.socket.close_code
            return False
        fields = json.loads(message.data)
        match fields["type"]:
            case "hello":
                self.role = fields["role"]
                self.streams = fields["streams"]
                self.state = fields["state"]
            case "streams":
                self.streams = fields["streams"]
            case "state":
                self.state = fields["state"]
            case "error":
                self.errors.append(fields["message"])
            case "pong":
                self.pongs.append(fields)
        return True

    async def next_picture(self) -> tuple[dict[str, Any], bytes]:
        """The next picture of those that are still to come."""
        number = len(self.pictures)
        while len(self.pictures) == number:
            assert await self.hear(), "the server closed"
        return self.pictures[-1]


def take_apart(message: bytes) -> tuple[dict[str, Any], bytes]:
    """Header and payload of a picture."""
    (length,) = struct.unpack(">I", message[:4])
    return json.loads(message[4 : 4 + length]), message[4 + length :]


def codec_string(access_unit: bytes) -> str:
    """Name of a key picture's codec for the decoder of a browser."""
    at = access_unit.index(b"\x00\x00\x01\x67") + 4
    return "avc1." + access_unit[at : at + 3].hex()


class PeerClient:
    """A viewer over WebRTC.

    Args:
        address: Of the server.
        token: What lets it in, if anything is needed.
    """

    def __init__(self, address: str, token: str | None = None) -> None:
        import aiortc

        self._address, self._token = address, token
        self.connection = aiortc.RTCPeerConnection(aiortc.RTCConfiguration(iceServers=[]))
        self.channel = self.connection.createDataChannel("anything")
        self.channel.on("message", self._hear)
        self.channel.on("open", lambda: self.say("ping", t=1.5))
        self.pongs: list[dict[str, Any]] = []
        self.errors: list[str] = []
        self.headers: list[dict[str, Any]] = []
        self.track: Any = None
        self.timestamps: set[int] = set()

    async def connect(self, stream: str) -> dict[str, Any]:
        """Make the offer and return the server's answer."""
        import aiortc

        self.connection.addTransceiver("video", direction="recvonly")
        self.connection.on("track", lambda track: setattr(self, "track", track))
        await self.connection.setLocalDescription(await self.connection.createOffer())
        receiver = self.connection.getReceivers()[0]
        handle = receiver._handle_rtp_packet

        async def note(packet: Any, *more: Any, **others: Any) -> None:
            self.timestamps.add(packet.timestamp)
            await handle(packet, *more, **others)

        # A browser shows timestamps, while aiortc counts from the first.
        receiver._handle_rtp_packet = note
        local = self.connection.localDescription
        headers = {"Authorization": f"Bearer {self._token}"} if self._token else {}
        body = {"sdp": local.sdp, "type": local.type, "stream": stream}
        http = aiohttp.ClientSession(self._address, headers=headers)
        async with http, http.post("/webrtc/offer", json=body) as response:
            assert response.status == 200, await response.text()
            answer: dict[str, Any] = await response.json()
        await self.connection.setRemoteDescription(aiortc.RTCSessionDescription(answer["sdp"], answer["type"]))
        return answer

    def say(self, kind: str, **fields: Any) -> None:
        self.channel.send(json.dumps({"type": kind, **fields}))

    def _hear(self, message: str) -> None:
        fields = json.loads(message)
        match fields.get("type"):
            case None:
                self.headers.append(fields)
            case "pong":
                self.pongs.append(fields)
            case "error":
                self.errors.append(fields["message"])
