//! Attacks on its rings and its session: some for each of the points 1 to 18 of the checklist of hostile
//! inputs.

use ringpass_vhost_user::{Command, Header, Kind, Request};
use ringpass_virtio::features::{INDIRECT_DESC, RING_PACKED};
use ringpass_virtio::layout::flags::{AVAIL, INDIRECT, NEXT, USED, WRITE};

use crate::switch_hostile::attacker::{Attacker, BUFFER, END, RX, SIZE, TABLE, TX, descriptors};

/// One way to lose a session.
pub struct Attack {
    /// Features that it negotiates, out of those that the device offers.
    pub features: u64,
    pub mount: fn(&mut Attacker),
    /// The reason in the log.
    pub reason: &'static str,
    /// Whether a queue is broken by it, which is counted.
    pub ring: bool,
}

const fn ring(features: u64, mount: fn(&mut Attacker), reason: &'static str) -> Attack {
    Attack { features, mount, reason, ring: true }
}

const fn session(mount: fn(&mut Attacker), reason: &'static str) -> Attack {
    Attack { features: 0, mount, reason, ring: false }
}

/// Bytes of a zeroed header and a frame.
const FRAME: u32 = 12 + 60;

const NO_END: &str =
    "queue 1: the guest made a chain of more than 1024 descriptors or more than the ring has, or a loop";
const NOT_ITS_USE: &str = "the guest made a chain whose buffers the device may not use as this queue's";
const NO_TABLE: &str = "queue 1: the guest made an indirect table where there may be none";

pub const ATTACKS: [Attack; 25] = [
    // 11: indices and heads.
    ring(0, |it| it.index(TX, 5000), "queue 1: the guest made 5000 chains available at once"),
    ring(0, |it| it.index(TX, 0xffff), "queue 1: the guest made 65535 chains available at once"),
    ring(0, |it| it.index(RX, SIZE + 1), "queue 0: the guest made 9 chains available at once"),
    ring(0, |it| it.offer(TX, &[SIZE]), "queue 1: the guest made 8 available, which the ring does not have"),
    ring(
        0,
        |it| {
            it.describe(descriptors(TX), 3, (BUFFER, FRAME, 0, 0));
            it.offer(TX, &[3, 3]);
        },
        "queue 1: the guest made 3 available, which it has not got back",
    ),
    // 12: chains.
    ring(0, |it| it.offer_one(TX, (BUFFER, 4, NEXT, SIZE)), "queue 1: the guest made a chain that goes on at 8"),
    ring(0, |it| it.offer_one(TX, (BUFFER, 4, NEXT, 0)), NO_END),
    ring(
        0,
        |it| {
            it.describe(descriptors(TX), 1, (BUFFER, 4, NEXT, 0));
            it.offer_one(TX, (BUFFER, 4, NEXT, 1));
        },
        NO_END,
    ),
    ring(0, |it| it.offer_one(TX, (BUFFER, FRAME, WRITE, 0)), NOT_ITS_USE),
    ring(0, |it| it.offer_one(TX, (BUFFER, u32::MAX, 0, 0)), "queue 1: the guest made 4294967295 bytes at 0x180000"),
    // 13: addresses.
    ring(0, |it| it.offer_one(TX, (0, FRAME, 0, 0)), "queue 1: the guest made 72 bytes at 0x0 available"),
    ring(0, |it| it.offer_one(TX, (END - 71, FRAME, 0, 0)), "queue 1: the guest made 72 bytes at 0x1fffb9"),
    ring(0, |it| it.offer_one(RX, (END, 2048, WRITE, 0)), "queue 0: the guest made 2048 bytes at 0x200000"),
    // 14: tables.
    ring(
        INDIRECT_DESC,
        |it| it.offer_one(TX, (TABLE, 17, INDIRECT, 0)),
        "queue 1: the guest made an indirect table of 17 bytes",
    ),
    ring(
        INDIRECT_DESC,
        |it| {
            it.describe(TABLE, 0, (TABLE, 16, INDIRECT, 0));
            it.offer_one(TX, (TABLE, 16, INDIRECT, 0));
        },
        NO_TABLE,
    ),
    ring(0, |it| it.offer_one(TX, (TABLE, 16, INDIRECT, 0)), NO_TABLE),
    // 15 and 16: headers.
    ring(0, |it| it.offer_one(RX, (BUFFER, 2048, 0, 0)), NOT_ITS_USE),
    ring(0, |it| it.offer_one(RX, (BUFFER, 7, WRITE, 0)), "queue 0: a chain of 7 bytes is too short for the header"),
    ring(0, |it| it.offer_one(TX, (BUFFER, 5, 0, 0)), "queue 1: a chain of 5 bytes is too short for the header"),
    // 10 and 17: full call counters and many kicks; then an invalid index ends the session as in the other
    // attacks.
    ring(
        0,
        |it| {
            it.fill_calls();
            (0..7).for_each(|slot| it.describe(descriptors(RX), slot, (BUFFER, 2048, WRITE, 0)));
            it.offer(RX, &[0, 1, 2, 3, 4, 5, 6]);
            (0..100).for_each(|_| it.kick(TX));
            it.index(TX, 600);
        },
        "queue 1: the guest made 600 chains available at once",
    ),
    // 18: packed rings.
    ring(
        RING_PACKED,
        |it| {
            it.describe_packed(TX, 0, (BUFFER, FRAME, AVAIL, SIZE));
            it.kick(TX);
        },
        "queue 1: the guest made 8 available, which the ring does not have",
    ),
    ring(
        RING_PACKED,
        |it| {
            it.describe_packed(TX, 1, (BUFFER, 4, AVAIL | USED, 0));
            it.describe_packed(TX, 0, (BUFFER, 4, AVAIL | NEXT, 0));
            it.kick(TX);
        },
        "queue 1: the guest made a part of a chain available",
    ),
    // 1, 4 and 9: messages.
    session(|it| it.say(&[1; 7]), "the front-end has closed the connection in the middle of a message"),
    session(
        |it| {
            let header = Header { command: Command::GetFeatures as u32, kind: Kind::Reply, size: 0 };
            it.say(&header.to_bytes());
        },
        "the front-end has sent a reply, where nothing was asked",
    ),
    session(
        |it| _ = it.session.send_request(&Request::SetVringNum { index: TX, num: 64 }, vec![]),
        "SET_VRING_NUM was refused: a change of ring 1 while it runs",
    ),
];
