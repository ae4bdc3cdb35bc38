"""From frames to pictures for many viewers: streams, mailboxes, the protocol; no socket."""
