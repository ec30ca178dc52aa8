//! What a driver knows of a received frame beside its bytes: the RSS hash, a VLAN tag that the card has taken out, and when it arrived. The program asks the
//! driver by functions of the kernel (Linux 6.3, networking/xdp-rx-metadata) and writes the answers in front of the frame.

use std::mem::offset_of;

use ringpass_memory::Packet;
use ringpass_port::Offloads;

use super::assembler::{
    ADD, Assembler, CALL, CONTEXT, Context, JUMP_IF_GREATER_REGISTER, JUMP_IF_NOT_EQUAL, LOAD_DOUBLE, LOAD_WORD, MOVE,
    MOVE_REGISTER, OR, R0, R1, R2, R3, R4, STACK, STORE_DOUBLE, STORE_WORD, STORE_ZERO,
};
use super::btf;
use crate::netdev::XdpFeatures;
use crate::vlan_tag::{ADDRESSES, add_tag};

/// Bytes in front of a frame: a mark with flags, the hash, VLAN ID and priority with the tag's EtherType, and the time.
const LEN: usize = 24;
const MARK: u32 = 0x5270_0000;
const HASH: u32 = 1;
const VLAN: u32 = 2;
const TIME: u32 = 4;

/// Helper function `bpf_xdp_adjust_meta`.
const ADJUST_META: i32 = 54;
/// Source register of a call that means a function of the kernel.
const KERNEL_FUNCTION: u64 = 2;

/// What a port wants to learn beside the VLAN tag.
#[derive(Clone, Copy, Default)]
pub(super) struct Wanted {
    pub(super) hash: bool,
    pub(super) time: bool,
}

/// Functions of the kernel that a program calls, by their numbers.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Hints {
    hash: Option<u32>,
    vlan: Option<u32>,
    time: Option<u32>,
}

impl Hints {
    /// Returns those that a driver answers: the tag, without which frames would lack it, and what else is wanted, as some drivers
    /// compute it for the answer.
    pub(super) fn of(features: Option<XdpFeatures>, wanted: Wanted) -> Self {
        let asks = |can: fn(&XdpFeatures) -> bool| features.as_ref().is_some_and(can);
        let vlan = asks(XdpFeatures::rx_vlan_tag);
        let hash = wanted.hash && asks(XdpFeatures::rx_hash);
        let time = wanted.time && asks(XdpFeatures::rx_timestamp);
        if !vlan && !hash && !time {
            return Self::default();
        }
        let names = ["bpf_xdp_metadata_rx_hash", "bpf_xdp_metadata_rx_vlan_tag", "bpf_xdp_metadata_rx_timestamp"];
        let [of_hash, of_vlan, of_time] = btf::functions(names);
        Self { hash: of_hash.filter(|_| hash), vlan: of_vlan.filter(|_| vlan), time: of_time.filter(|_| time) }
    }

    pub(super) fn any(self) -> bool {
        self != Self::default()
    }

    /// Appends what asks the driver and writes its answers.
    pub(super) fn write(self, program: &mut Assembler) {
        let without = program.label();
        program.registers(MOVE_REGISTER, R1, CONTEXT);
        program.immediate(MOVE, R2, -(LEN as i32));
        program.immediate(CALL, 0, ADJUST_META);
        program.jump_if(JUMP_IF_NOT_EQUAL, R0, 0, without);
        // The answers are on the stack: hash and its kind; VLAN ID and priority, and the tag's EtherType; the time.
        const HASH_AT: i16 = -8;
        const VLAN_AT: i16 = -16;
        const TIME_AT: i16 = -24;
        const FLAGS: u64 = 9;
        program.store(STORE_ZERO, STACK, 0, HASH_AT);
        program.store(STORE_ZERO, STACK, 0, VLAN_AT);
        program.store(STORE_ZERO, STACK, 0, TIME_AT);
        program.immediate(MOVE, FLAGS, MARK as i32);
        // A function that has one answer does not look at the third argument.
        let questions = [
            (self.hash, HASH, [HASH_AT, HASH_AT + 4]),
            (self.vlan, VLAN, [VLAN_AT + 4, VLAN_AT]),
            (self.time, TIME, [TIME_AT, TIME_AT]),
        ];
        for (function, flag, answers) in questions {
            let Some(function) = function else { continue };
            let unknown = program.label();
            program.registers(MOVE_REGISTER, R1, CONTEXT);
            for (register, at) in [R2, R3].into_iter().zip(answers) {
                program.registers(MOVE_REGISTER, register, STACK);
                program.immediate(ADD, register, i32::from(at));
            }
            program.call_kernel(KERNEL_FUNCTION, function as i32);
            program.jump_if(JUMP_IF_NOT_EQUAL, R0, 0, unknown);
            program.immediate(OR, FLAGS, flag as i32);
            program.place(unknown);
        }
        program.load(LOAD_WORD, R2, CONTEXT, offset_of!(Context, data_meta) as i16);
        program.load(LOAD_WORD, R3, CONTEXT, offset_of!(Context, data) as i16);
        program.registers(MOVE_REGISTER, R4, R2);
        program.immediate(ADD, R4, LEN as i32);
        program.jump_if_registers(JUMP_IF_GREATER_REGISTER, R4, R3, without);
        program.store(STORE_WORD, R2, FLAGS, 0);
        program.load(LOAD_WORD, R1, STACK, HASH_AT);
        program.store(STORE_WORD, R2, R1, 4);
        program.load(LOAD_DOUBLE, R1, STACK, VLAN_AT);
        program.store(STORE_DOUBLE, R2, R1, 8);
        program.load(LOAD_DOUBLE, R1, STACK, TIME_AT);
        program.store(STORE_DOUBLE, R2, R1, 16);
        program.place(without);
    }
}

/// Takes what the program has written in front of a frame, and puts the VLAN tag where the port's users look for it: into the frame, or beside
/// it with the offload `vlan`. Returns `None` if there is no room for it. `time` is set if the card has noted one.
pub(super) fn finish(mut packet: Packet, offloads: Offloads, time: &mut u64) -> Option<Packet> {
    let mut tag = None;
    if packet.prepend(LEN) {
        let [flags, hash, id, kind, low, high] = packet.array::<LEN>(0).map(words).unwrap_or_default();
        if flags & !(HASH | VLAN | TIME) == MARK {
            // Another frame may come into this buffer without such words.
            packet.write(0, &[0; 4]);
            if flags & HASH != 0 && offloads.hash {
                packet.set_rss_hash(hash);
            }
            // A driver may answer although nobody has told the card to note times.
            let noted = u64::from(low) | u64::from(high) << 32;
            if flags & TIME != 0 && noted != 0 {
                *time = noted;
            }
            let [high, low] = (id as u16).to_be_bytes();
            let [first, second] = (kind as u16).to_ne_bytes();
            tag = (flags & VLAN != 0).then_some([first, second, high, low]);
        }
        if !packet.trim_front(LEN) {
            return None;
        }
    }
    match tag {
        Some(tag) => _ = add_tag(&mut packet, tag, offloads)?,
        // The driver has left it in the frame.
        None if offloads.vlan => {
            if let (Some(addresses), Some([0x81, 0, high, low])) =
                (packet.array::<ADDRESSES>(0), packet.array(ADDRESSES))
            {
                packet.write(4, &addresses);
                if packet.trim_front(4) {
                    packet.set_vlan(u16::from_be_bytes([high, low]));
                }
            }
        }
        None => {}
    }
    Some(packet)
}

fn words(bytes: [u8; LEN]) -> [u32; LEN / 4] {
    std::array::from_fn(|at| u32::from_ne_bytes(std::array::from_fn(|byte| bytes[4 * at + byte])))
}

#[cfg(test)]
mod tests {
    use std::os::fd::OwnedFd;

    use ringpass_lab::Namespace;
    use ringpass_memory::{Burst, Mempool, MempoolConfig};
    use ringpass_port::{Port, PortConfig, QueuePair, XdpConfig, XdpMode};
    use ringpass_testing::{bytes_of, frame, packet, poll_until};

    use super::super::{Xdp, bpf};
    use super::*;
    use crate::PacketSocket;
    use crate::capture_file::now;

    const ID: i32 = 0xa00a;

    /// Gives what an interface sends a VLAN tag beside the frame, as an interface of the kernel for VLANs does.
    fn tag_beside(namespace: &Namespace, interface: &str) -> OwnedFd {
        const VLAN_PUSH: i32 = 18;
        let mut program = Assembler::default();
        program.immediate(MOVE, R2, i32::from(0x8100_u16.to_be()));
        program.immediate(MOVE, R3, ID);
        program.immediate(CALL, 0, VLAN_PUSH);
        program.immediate(MOVE, R0, 0);
        program.immediate(super::super::assembler::EXIT, 0, 0);
        let index = namespace.enter(|| crate::sys::Interfaces::new()?.index(interface)).expect("it is there");
        namespace.enter(|| bpf::attach_to_sending(&program.code, index)).expect("a program for what is sent")
    }

    fn received(at: &mut QueuePair) -> Packet {
        let mut burst = Burst::new(1);
        poll_until("a frame", || at.rx.rx_burst(&mut burst) > 0);
        let packet = burst.drain().next();
        packet.expect("one")
    }

    #[test]
    fn tags_beside_frames_and_hashes_are_learned_from_the_driver() {
        let (a, b) = (Namespace::new(), Namespace::new());
        a.ip(&["link", "add", "name", "va", "type", "veth", "peer", "name", "vb", "netns", &b.0]);
        a.ip(&["link", "set", "va", "up"]);
        b.ip(&["link", "set", "vb", "up"]);
        let pool = Mempool::new(&MempoolConfig::default()).expect("memory");
        let mut sender = a.enter(|| PacketSocket::open("va", &PortConfig::default(), &pool)).expect("a packet socket");
        poll_until("the link", || sender.link().up);
        let mut at_a = sender.take_queues().remove(0);
        let _tags = tag_beside(&a, "va");
        let mode = Some(XdpMode::Native);
        let address = XdpConfig { interface: "vb".into(), mode, timestamps: true, ..XdpConfig::default() };
        let offloads = [Offloads::default(), Offloads { vlan: true, hash: true, ..Offloads::default() }];
        for offloads in offloads {
            let config = PortConfig { offloads, ..PortConfig::default() };
            let mut port = b.enter(|| Xdp::open(&address, &config, &pool)).expect("an XDP socket");
            assert!(port.notes().iter().any(|note| note.contains("asked for VLAN tags")), "{:?}", port.notes());
            poll_until("the link", || port.link().up);
            let mut at_b = port.take_queues().remove(0);
            for number in 0..2000 {
                let sent = frame(number, 60 + number as usize % 1400);
                let mut burst = Burst::new(1);
                burst.push(packet(&pool, &sent));
                poll_until("room", || at_a.tx.tx_burst(&mut burst) == 1);
                let before = now();
                let got = received(&mut at_b);
                // A veth knows no time of arrival, so this is the burst's.
                assert!(matches!(at_b.rx.rx_timestamps(), [time] if (before..=now()).contains(time)));
                if offloads.vlan {
                    assert_eq!((bytes_of(&got), got.vlan()), (sent, Some(ID as u16)));
                    assert!(got.rss_hash().is_some());
                } else {
                    let tagged = [&sent[..12], &[0x81, 0, 0xa0, 0x0a], &sent[12..]].concat();
                    assert_eq!((bytes_of(&got), got.vlan(), got.rss_hash()), (tagged, None, None));
                }
            }
        }
    }

    #[test]
    fn what_is_written_in_front_of_a_frame_is_taken_once() {
        let pool = Mempool::new(&MempoolConfig::default()).expect("memory");
        let sent = frame(1, 60);
        let all = Offloads { vlan: true, hash: true, ..Offloads::default() };
        for (flags, noted) in [(HASH | VLAN | TIME, 0x1_0000_0002_u64), (TIME, 0), (HASH, 7), (8, 7)] {
            let kind = u32::from(0x8100_u16.to_be());
            let [low, high] = [noted as u32, (noted >> 32) as u32];
            let front = [MARK | flags, 0xabcd, 0x2007, kind, low, high].map(u32::to_ne_bytes).concat();
            let mut packet = packet(&pool, &[front, sent.clone()].concat());
            assert!(packet.trim_front(LEN));
            for is_first in [true, false] {
                let mut time = 5;
                packet = finish(packet, all, &mut time).expect("it has room");
                assert_eq!(bytes_of(&packet), sent);
                assert_eq!(time, if is_first && flags & TIME != 0 && noted != 0 { noted } else { 5 });
                let (hash, vlan) = (packet.rss_hash(), packet.vlan());
                assert_eq!(hash, (flags < 8 && flags & HASH != 0).then_some(0xabcd));
                assert_eq!(vlan, (flags & VLAN != 0).then_some(0x2007));
            }
        }
    }

    #[test]
    fn a_tag_in_the_frame_is_put_beside_it() {
        let pool = Mempool::new(&MempoolConfig::default()).expect("memory");
        let plain = frame(1, 60);
        let tagged = [&plain[..12], &[0x81, 0, 0x20, 7], &plain[12..]].concat();
        let beside = Offloads { vlan: true, ..Offloads::default() };
        let finished = finish(packet(&pool, &tagged), beside, &mut 0).expect("it has room");
        assert_eq!((bytes_of(&finished), finished.vlan()), (plain.clone(), Some(0x2007)));
        let finished = finish(packet(&pool, &tagged), Offloads::default(), &mut 0).expect("it has room");
        assert_eq!((bytes_of(&finished), finished.vlan()), (tagged, None));
        let finished = finish(packet(&pool, &plain), beside, &mut 0).expect("it has room");
        assert_eq!((bytes_of(&finished), finished.vlan()), (plain, None));
    }
}
