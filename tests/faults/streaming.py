"""Faults in streams, the page, the policy server and the ROS bridge."""

from __future__ import annotations

from faults.mutant import Mutant, mutant

STREAMING: list[Mutant] = [
    mutant(
        "whole_token_opens",
        'hmac.compare_digest(token.encode("utf-8", "surrogatepass"), secret)',
        'hmac.compare_digest(token.encode("utf-8", "surrogatepass"), secret[: len(token)])',
        "streaming/web/test_security.py",
    ),
    mutant(
        "newest_frame_wins",
        "old, self._waiting = self._waiting, frame\n",
        "old, self._waiting = (None, frame) if self._waiting is None else (frame, self._waiting)\n",
        "streaming/broadcast/test_mailboxes.py",
    ),
    mutant("two_pictures_under_way", "_MOST = 2\n", "_MOST = 3\n", "streaming/web/test_sockets.py"),
    mutant(
        "joiners_wait_for_a_key_picture",
        "elif self.needs_key or len(self._held) == self._limit:",
        "elif len(self._held) == self._limit:",
        "streaming/broadcast/test_mailboxes.py",
        "streaming/broadcast/test_streams.py",
    ),
    mutant(
        "no_address_takes_all_connections",
        "max(1, -(-2 * self._limit // 3))",
        "self._limit",
        "streaming/web/test_connection_limit.py",
        k="address or room",
    ),
    mutant(
        "mjpeg_boundary_on_its_own_line",
        r'encoded.data + b"\r\n" + _BOUNDARY + _PART',
        "encoded.data + _BOUNDARY + _PART",
        "streaming/web/test_mjpeg.py",
    ),
    mutant(
        "header_length_is_big_endian",
        '_LENGTH = struct.Struct(">I")',
        '_LENGTH = struct.Struct("<I")',
        "streaming/broadcast/test_protocol.py",
    ),
]

_SEEN = "streaming/broadcast/test_streams.py"
VIEWERS: list[Mutant] = [
    mutant(
        "viewers_get_no_more_than_the_server_gives",
        "Subscription(stream, codec, min(fps or self.fps, self.fps))",
        "Subscription(stream, codec, fps or self.fps)",
        _SEEN,
    ),
    mutant("the_fastest_viewer_sets_the_rate", "self.schedule.interval = min(", "self.schedule.interval = max(", _SEEN),
]

_VIEW = "streaming/broadcast/test_frames.py"
_SHOWN = "streaming/test_server.py"
PAGE: list[Mutant] = [
    mutant("ages_in_milliseconds", "else 1e3 * self.message_age_s", "else self.message_age_s", _VIEW),
    mutant("finite_numbers_on_the_page", "return found if math.isfinite(found) else None", "return found", _VIEW),
    mutant("so_many_actions_shown", "np.ravel(values)[:MAX_ACTIONS]", "np.ravel(values)[: MAX_ACTIONS + 1]", _VIEW),
    mutant("least_is_black", "255.0 / max(high - low, 1e-12)", "255.0 / max(high, 1e-12)", _VIEW),
    mutant(
        "what_was_seen_is_its_own_stream",
        '(view.seen, f"{stream}:{SEEN}")',
        '(view.frame, f"{stream}:{SEEN}")',
        _SHOWN,
        k="policy",
    ),
    mutant(
        "each_picture_is_wanted_by_itself",
        "if frame is not None and self.wanted(name):",
        "if frame is not None and self.wanted(stream):",
        _SHOWN,
        k="policy",
    ),
    mutant(
        "last_row_of_a_request", "self._name_values(action[-1])", "self._name_values(action[0])", "serving/test_page.py"
    ),
    mutant("newest_frame_of_a_clip", "else picture[-1]", "else picture[0]", "serving/test_page.py"),
    mutant("a_few_of_many_requests", "self._next_at = now + _PERIOD_S", "self._next_at = now", "serving/test_page.py"),
    mutant(
        "rows_of_the_request_shown",
        "decided.append(actions[start:end])",
        "decided.append(actions[: request.rows])",
        "serving/test_batching.py",
    ),
    mutant(
        "clip_of_the_row_shown",
        "clips.sheet(self._clip[index]",
        "clips.sheet(self._clip[0]",
        "envs/test_pixels.py",
        k="page",
    ),
]

_ROS = "streaming/ros2/test_bridge.py"
SERVING: list[Mutant] = [
    mutant(
        "as_much_waits_as_may",
        "if self._rows + rows > self._max_waiting:",
        "if self._rows + rows >= self._max_waiting:",
        "serving/test_batching.py",
        k="leaves or more_rows",
    ),
    mutant(
        "watchers_do_not_act",
        'if role_of(request) != "control":\n        raise web.HTTPForbidden(**error_body("this token',
        'if role_of(request) is None:\n        raise web.HTTPForbidden(**error_body("this token',
        "serving/test_server.py",
        k="token",
    ),
    mutant(
        "clips_end_with_the_newest",
        "torch.cat([self._clip[1:], frame[None]])",
        "torch.cat([frame[None], self._clip[1:]])",
        _ROS,
        k="clip_is",
    ),
    mutant(
        "actions_stay_within_bounds",
        "np.clip(found, space.low, space.high)",
        "np.clip(found, space.low, None)",
        "system/test_archives.py",
    ),
    mutant(
        "what_comes_late_is_not_sent",
        "            if age > self._max_age:\n",
        "            if age > 2 * self._max_age:\n",
        _ROS,
        k="hang or stale or late",
    ),
]
