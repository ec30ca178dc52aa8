//! The XDP program that redirects frames to sockets: those that a port's filters take, or all.

use std::mem::offset_of;

use ringpass_port::FrameFilter;

use super::assembler::*;
use super::hints::Hints;

/// Result of a program: the frame goes to the kernel's stack.
const XDP_PASS: i32 = 2;
/// Helper function `bpf_redirect_map`.
const REDIRECT_MAP: i32 = 51;

/// EtherTypes and a protocol number.
const IPV4: u16 = 0x0800;
const IPV6: u16 = 0x86dd;
const VLAN: u16 = 0x8100;
const SERVICE_VLAN: u16 = 0x88a8;
const UDP: i32 = 17;

const ETHERNET_LEN: i32 = 14;
const UDP_LEN: i32 = 8;

/// Swaps a number to how two bytes of a frame are loaded.
fn swapped(number: u16) -> i32 {
    i32::from(u16::from_ne_bytes(number.to_be_bytes()))
}

/// Returns `bpf_redirect_map(map, rx_queue_index, XDP_PASS)` for what the filters take, or for all frames if there are none. Other frames, and those of
/// queues without a socket, go to the kernel.
pub(super) fn redirect(map: i32, filters: &[FrameFilter], hints: Hints) -> Vec<u64> {
    let mut take = Assembler::default();
    if hints.any() {
        hints.write(&mut take);
    }
    take.load(LOAD_WORD, R2, CONTEXT, offset_of!(Context, rx_queue_index) as i16);
    // A map's address takes two instructions, the first with 1 as its source register.
    take.code.extend([instruction(LOAD_MAP, R1, 1, 0, map), 0]);
    take.immediate(MOVE, R3, XDP_PASS);
    take.immediate(CALL, 0, REDIRECT_MAP);
    take.immediate(EXIT, 0, 0);
    filtered(filters, &take.code)
}

/// Returns a program that ends with these instructions for what the filters take, or for all frames if there are none.
fn filtered(filters: &[FrameFilter], take: &[u64]) -> Vec<u64> {
    let mut program = Assembler::default();
    // The context is in register 1 at the start.
    program.registers(MOVE_REGISTER, CONTEXT, R1);
    if !filters.is_empty() {
        let (taken, passed) = (program.label(), program.label());
        program.load(LOAD_WORD, START, CONTEXT, offset_of!(Context, data) as i16);
        program.load(LOAD_WORD, END, CONTEXT, offset_of!(Context, data_end) as i16);
        program.jump_if_short(START, ETHERNET_LEN, passed);
        for filter in filters {
            let next = program.label();
            match filter {
                FrameFilter::Udp(port) => udp(&mut program, *port, taken, next),
                FrameFilter::Vlan(id) => vlan(&mut program, *id, taken, next),
                FrameFilter::DstMac(mac) => {
                    let [a, b, c, d, rest @ ..] = mac.0;
                    program.load(LOAD_WORD, R2, START, 0);
                    program.jump_if(JUMP_IF_NOT_EQUAL, R2, i32::from_ne_bytes([a, b, c, d]), next);
                    program.load_half(4);
                    program.jump_if(JUMP_IF_EQUAL, R2, swapped(u16::from_be_bytes(rest)), taken);
                }
                FrameFilter::EtherType(number) => {
                    program.load_half(12);
                    program.jump_if(JUMP_IF_EQUAL, R2, swapped(*number), taken);
                }
            }
            program.place(next);
        }
        program.place(passed);
        program.immediate(MOVE, R0, XDP_PASS);
        program.immediate(EXIT, 0, 0);
        program.place(taken);
    }
    program.code.extend(take);
    program.code
}

fn vlan(program: &mut Assembler, id: u16, taken: Label, next: Label) {
    let tagged = program.label();
    program.jump_if_short(START, ETHERNET_LEN + 4, next);
    program.load_half(12);
    program.jump_if(JUMP_IF_EQUAL, R2, swapped(VLAN), tagged);
    program.jump_if(JUMP_IF_NOT_EQUAL, R2, swapped(SERVICE_VLAN), next);
    program.place(tagged);
    program.load_half(14);
    program.immediate(AND, R2, swapped(0xfff));
    program.jump_if(JUMP_IF_EQUAL, R2, swapped(id), taken);
}

fn udp(program: &mut Assembler, port: u16, taken: Label, next: Label) {
    const IPV6_LEN: i32 = 40;
    let ipv6 = program.label();
    program.load_half(12);
    program.jump_if(JUMP_IF_EQUAL, R2, swapped(IPV6), ipv6);
    program.jump_if(JUMP_IF_NOT_EQUAL, R2, swapped(IPV4), next);
    program.jump_if_short(START, ETHERNET_LEN + 20 + UDP_LEN, next);
    program.load(LOAD_BYTE, R2, START, 14 + 9);
    program.jump_if(JUMP_IF_NOT_EQUAL, R2, UDP, next);
    // The flag for more fragments, and this one's offset.
    program.load_half(14 + 6);
    program.immediate(AND, R2, swapped(0x3fff));
    program.jump_if(JUMP_IF_NOT_EQUAL, R2, 0, next);
    // Version 4, and the header's length in words, which are at least 5.
    program.load(LOAD_BYTE, R2, START, 14);
    program.immediate(XOR, R2, 0x40);
    program.jump_if(JUMP_IF_LESS, R2, 5, next);
    program.jump_if(JUMP_IF_GREATER, R2, 15, next);
    program.immediate(SHIFT_LEFT, R2, 2);
    program.registers(MOVE_REGISTER, R3, START);
    program.registers(ADD_REGISTER, R3, R2);
    program.jump_if_short(R3, ETHERNET_LEN + UDP_LEN, next);
    program.load(LOAD_HALF, R2, R3, 14 + 2);
    program.jump_if(JUMP_IF_EQUAL, R2, swapped(port), taken);
    program.jump(next);

    program.place(ipv6);
    program.jump_if_short(START, ETHERNET_LEN + IPV6_LEN + UDP_LEN, next);
    program.load(LOAD_BYTE, R2, START, 14);
    program.immediate(AND, R2, 0xf0);
    program.jump_if(JUMP_IF_NOT_EQUAL, R2, 0x60, next);
    program.load(LOAD_BYTE, R2, START, 14 + 6);
    program.jump_if(JUMP_IF_NOT_EQUAL, R2, UDP, next);
    program.load_half(14 + 40 + 2);
    program.jump_if(JUMP_IF_EQUAL, R2, swapped(port), taken);
}

#[cfg(test)]
mod tests {
    use ringpass_port::MacAddress;
    use ringpass_testing::Random;

    use super::super::bpf;
    use super::*;

    /// Result of a program for what it takes, which needs no socket (`XDP_TX`).
    const TAKEN: i32 = 3;

    /// The kernel, which runs a program for these filters.
    struct InKernel(std::os::fd::OwnedFd);

    impl InKernel {
        fn new(filters: &[FrameFilter]) -> Self {
            let take = [instruction(MOVE, R0, 0, 0, TAKEN), instruction(EXIT, 0, 0, 0, 0)];
            Self(bpf::load(&filtered(filters, &take), bpf::Load::Plain).expect("the verifier takes the program"))
        }

        fn takes(&self, frame: &[u8]) -> bool {
            match bpf::run(&self.0, frame).expect("the program runs") as i32 {
                TAKEN => true,
                XDP_PASS => false,
                other => panic!("result {other}"),
            }
        }
    }

    /// What the documentation says, without any regard to how the program does it.
    fn model(filters: &[FrameFilter], frame: &[u8]) -> bool {
        filters.is_empty() || filters.iter().any(|filter| filter.takes(frame))
    }

    fn one_of<T: Copy>(random: &mut Random, of: &[T]) -> T {
        of[random.index(of.len())]
    }

    /// A frame that is near to what filters take: right in most places, and wrong in a few.
    fn frame(random: &mut Random) -> Vec<u8> {
        let mut frame: Vec<u8> = (0..14 + random.index(90)).map(|_| random.index(256) as u8).collect();
        let set = |frame: &mut Vec<u8>, at: usize, bytes: &[u8]| {
            frame.iter_mut().skip(at).zip(bytes).for_each(|(to, from)| *to = *from);
        };
        set(&mut frame, 0, &[2, 0, 0, 0, random.index(3) as u8, random.index(3) as u8]);
        let ethertype = one_of(random, &[0x0800_u16, 0x0800, 0x86dd, 0x8100, 0x88a8, 0x88b5]);
        set(&mut frame, 12, &ethertype.to_be_bytes());
        let port = one_of(random, &[[18, 181], [18, 181], [181, 18], [0, 53]]);
        let protocol = one_of(random, &[17, 17, 17, 6]);
        match ethertype {
            0x0800 => {
                let first = one_of(random, &[0x45_u8, 0x45, 0x46, 0x4f, 0x44, 0x55, 0x05]);
                set(&mut frame, 14, &[first]);
                set(&mut frame, 20, &one_of(random, &[[0, 0], [0x40, 0], [0x20, 0], [0, 1], [0x80, 0]]));
                set(&mut frame, 23, &[protocol]);
                set(&mut frame, 14 + usize::from(first & 15) * 4 + 2, &port);
            }
            0x86dd => {
                set(&mut frame, 14, &[one_of(random, &[0x60, 0x6f, 0x45])]);
                set(&mut frame, 20, &[protocol]);
                set(&mut frame, 56, &port);
            }
            _ => set(&mut frame, 14, &one_of(random, &[[0, 10], [0xe0, 10], [0x10, 10], [0, 11], [0xaf, 0xfe]])),
        }
        if random.index(4) == 0 {
            let at = random.index(frame.len());
            frame[at] ^= 1 << random.index(8);
        }
        frame
    }

    #[test]
    fn the_kernel_and_a_plain_model_take_the_same_frames() {
        let mac = |last| FrameFilter::DstMac(MacAddress([2, 0, 0, 0, 1, last]));
        let each = [
            FrameFilter::Udp(4789),
            FrameFilter::Udp(53),
            FrameFilter::Vlan(10),
            FrameFilter::Vlan(0xffe),
            mac(2),
            FrameFilter::EtherType(0x88b5),
            FrameFilter::EtherType(0x8100),
        ];
        let mut sets: Vec<Vec<FrameFilter>> = each.iter().map(|filter| vec![*filter]).collect();
        sets.extend([vec![], each.to_vec(), vec![mac(1), FrameFilter::Vlan(11), FrameFilter::Udp(46_354)]]);
        // As many as a port may have, each of the longest kind.
        sets.push((0..32).map(|port| FrameFilter::Udp(4780 + port)).collect());
        let mut random = Random::new(0x5eed);
        for filters in &sets {
            let kernel = InKernel::new(filters);
            let mut taken = 0;
            for _ in 0..20_000 {
                let frame = frame(&mut random);
                let takes = kernel.takes(&frame);
                assert_eq!(takes, model(filters, &frame), "{filters:?}: {frame:02x?}");
                taken += usize::from(takes);
            }
            assert!(taken > 20, "{filters:?}: of 20,000 frames it takes {taken}");
        }
    }
}
