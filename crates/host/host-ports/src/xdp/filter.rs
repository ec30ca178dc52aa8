//! The XDP program that redirects frames to sockets: those that a port's filters take, or all.

use std::mem::offset_of;

use ringpass_port::XdpFilter;

use super::hints::Hints;

/// Result of a program: the frame goes to the kernel's stack.
const XDP_PASS: i32 = 2;
/// Helper function `bpf_redirect_map`.
const REDIRECT_MAP: i32 = 51;

/// What a program knows of a frame (`struct xdp_md`, the part that is used).
#[repr(C)]
pub(super) struct Context {
    pub(super) data: u32,
    data_end: u32,
    pub(super) data_meta: u32,
    ingress_ifindex: u32,
    rx_queue_index: u32,
}

/// Registers: the result and the first arguments, then those that a call leaves as they are.
pub(super) const R0: u64 = 0;
pub(super) const R1: u64 = 1;
pub(super) const R2: u64 = 2;
pub(super) const R3: u64 = 3;
pub(super) const R4: u64 = 4;
/// The context.
pub(super) const CONTEXT: u64 = 6;
/// End of the program's stack.
pub(super) const STACK: u64 = 10;
/// First byte of the frame, and the byte behind its last.
const START: u64 = 7;
const END: u64 = 8;

/// Operations (Linux, bpf/standardization/instruction-set): on immediate values unless they say otherwise.
const LOAD_MAP: u64 = 0x18;
pub(super) const LOAD_WORD: u64 = 0x61;
const LOAD_HALF: u64 = 0x69;
const LOAD_BYTE: u64 = 0x71;
pub(super) const LOAD_DOUBLE: u64 = 0x79;
pub(super) const STORE_WORD: u64 = 0x63;
pub(super) const STORE_DOUBLE: u64 = 0x7b;
/// Stores eight bytes of an immediate value.
pub(super) const STORE_ZERO: u64 = 0x7a;
pub(super) const ADD: u64 = 0x07;
pub(super) const OR: u64 = 0x47;
const ADD_REGISTER: u64 = 0x0f;
const AND: u64 = 0x57;
const SHIFT_LEFT: u64 = 0x67;
const XOR: u64 = 0xa7;
pub(super) const MOVE: u64 = 0xb7;
pub(super) const MOVE_REGISTER: u64 = 0xbf;
pub(super) const CALL: u64 = 0x85;
pub(super) const EXIT: u64 = 0x95;
const JUMP: u64 = 0x05;
const JUMP_IF_LESS: u64 = 0xa5;
const JUMP_IF_GREATER: u64 = 0x25;
pub(super) const JUMP_IF_GREATER_REGISTER: u64 = 0x2d;
/// These compare the lower half of a register.
const JUMP_IF_EQUAL: u64 = 0x16;
pub(super) const JUMP_IF_NOT_EQUAL: u64 = 0x56;

/// EtherTypes and a protocol number.
const IPV4: u16 = 0x0800;
const IPV6: u16 = 0x86dd;
const VLAN: u16 = 0x8100;
const SERVICE_VLAN: u16 = 0x88a8;
const UDP: i32 = 17;

const ETHERNET_LEN: i32 = 14;
const UDP_LEN: i32 = 8;

/// Encodes an instruction: operation, destination and source register, offset and immediate value.
const fn instruction(operation: u64, destination: u64, source: u64, offset: i16, value: i32) -> u64 {
    operation | destination << 8 | source << 12 | (offset as u16 as u64) << 16 | (value as u32 as u64) << 32
}

/// A place in a program that jumps go to.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct Label(usize);

/// A program that is being written. Jumps go forward only.
#[derive(Default)]
pub(super) struct Assembler {
    code: Vec<u64>,
    labels: usize,
    /// Instructions that jump to a label which has no place yet.
    jumps: Vec<(usize, Label)>,
}

impl Assembler {
    #[cfg(test)]
    pub(super) fn code(self) -> Vec<u64> {
        self.code
    }

    pub(super) fn label(&mut self) -> Label {
        self.labels += 1;
        Label(self.labels)
    }

    /// Gives a label the place of the next instruction.
    pub(super) fn place(&mut self, label: Label) {
        let next = self.code.len();
        let code = &mut self.code;
        self.jumps.retain(|&(at, to)| {
            if to == label {
                let distance = i16::try_from(next - at - 1).expect("programs are short");
                code[at] |= instruction(0, 0, 0, distance, 0);
            }
            to != label
        });
    }

    pub(super) fn immediate(&mut self, operation: u64, register: u64, value: i32) {
        self.code.push(instruction(operation, register, 0, 0, value));
    }

    pub(super) fn registers(&mut self, operation: u64, to: u64, from: u64) {
        self.code.push(instruction(operation, to, from, 0, 0));
    }

    pub(super) fn load(&mut self, operation: u64, to: u64, from: u64, offset: usize) {
        self.code.push(instruction(operation, to, from, offset as i16, 0));
    }

    fn jump(&mut self, to: Label) {
        self.jumps.push((self.code.len(), to));
        self.code.push(JUMP);
    }

    pub(super) fn jump_if(&mut self, operation: u64, register: u64, value: i32, to: Label) {
        self.jumps.push((self.code.len(), to));
        self.immediate(operation, register, value);
    }

    pub(super) fn jump_if_registers(&mut self, operation: u64, left: u64, right: u64, to: Label) {
        self.jumps.push((self.code.len(), to));
        self.registers(operation, left, right);
    }

    /// Stores a register, or zero, at an offset from the address in another.
    pub(super) fn store(&mut self, operation: u64, to: u64, from: u64, offset: i16) {
        self.code.push(instruction(operation, to, from, offset, 0));
    }

    /// Loads from an offset that may be negative.
    pub(super) fn load_signed(&mut self, operation: u64, to: u64, from: u64, offset: i16) {
        self.code.push(instruction(operation, to, from, offset, 0));
    }

    /// Calls a function that the kernel has for programs.
    pub(super) fn call_kernel(&mut self, kind: u64, function: i32) {
        self.code.push(instruction(CALL, 0, kind, 0, function));
    }

    /// Jumps if the frame has fewer than `len` bytes from the address in `from` on.
    fn jump_if_short(&mut self, from: u64, len: i32, to: Label) {
        self.registers(MOVE_REGISTER, R4, from);
        self.immediate(ADD, R4, len);
        self.jump_if_registers(JUMP_IF_GREATER_REGISTER, R4, END, to);
    }

    /// Loads two bytes of the frame. They are compared as they are, so values are swapped instead.
    fn load_half(&mut self, offset: usize) {
        self.load(LOAD_HALF, R2, START, offset);
    }
}

/// Swaps a number to how two bytes of a frame are loaded.
fn swapped(number: u16) -> i32 {
    i32::from(u16::from_ne_bytes(number.to_be_bytes()))
}

/// Returns `bpf_redirect_map(map, rx_queue_index, XDP_PASS)` for what the filters take, or for all frames if there are none. Other frames, and those of
/// queues without a socket, go to the kernel.
pub(super) fn redirect(map: i32, filters: &[XdpFilter], hints: Hints) -> Vec<u64> {
    let mut take = Assembler::default();
    if hints.any() {
        hints.write(&mut take);
    }
    take.load(LOAD_WORD, R2, CONTEXT, offset_of!(Context, rx_queue_index));
    // A map's address takes two instructions, the first with 1 as its source register.
    take.code.extend([instruction(LOAD_MAP, R1, 1, 0, map), 0]);
    take.immediate(MOVE, R3, XDP_PASS);
    take.immediate(CALL, 0, REDIRECT_MAP);
    take.immediate(EXIT, 0, 0);
    filtered(filters, &take.code)
}

/// Returns a program that ends with these instructions for what the filters take, or for all frames if there are none.
fn filtered(filters: &[XdpFilter], take: &[u64]) -> Vec<u64> {
    let mut program = Assembler::default();
    // The context is in register 1 at the start.
    program.registers(MOVE_REGISTER, CONTEXT, R1);
    if !filters.is_empty() {
        let (taken, passed) = (program.label(), program.label());
        program.load(LOAD_WORD, START, CONTEXT, offset_of!(Context, data));
        program.load(LOAD_WORD, END, CONTEXT, offset_of!(Context, data_end));
        program.jump_if_short(START, ETHERNET_LEN, passed);
        for filter in filters {
            let next = program.label();
            match filter {
                XdpFilter::Udp(port) => udp(&mut program, *port, taken, next),
                XdpFilter::Vlan(id) => vlan(&mut program, *id, taken, next),
                XdpFilter::DstMac(mac) => {
                    let [a, b, c, d, rest @ ..] = mac.0;
                    program.load(LOAD_WORD, R2, START, 0);
                    program.jump_if(JUMP_IF_NOT_EQUAL, R2, i32::from_ne_bytes([a, b, c, d]), next);
                    program.load_half(4);
                    program.jump_if(JUMP_IF_EQUAL, R2, swapped(u16::from_be_bytes(rest)), taken);
                }
                XdpFilter::EtherType(number) => {
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

    /// What the kernel does with a frame, by a program for these filters.
    struct InKernel(std::os::fd::OwnedFd);

    impl InKernel {
        fn new(filters: &[XdpFilter]) -> Self {
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
    fn model(filters: &[XdpFilter], frame: &[u8]) -> bool {
        let number = |at: usize| Some(u16::from_be_bytes(frame.get(at..at + 2)?.try_into().ok()?));
        let ethertype = number(12);
        let udp_port = || {
            let ip = frame.get(14..)?;
            match (ethertype?, ip.first()? >> 4) {
                (0x0800, 4) => {
                    let header = usize::from(ip[0] & 15) * 4;
                    let is_whole = header >= 20 && number(20)? & 0x3fff == 0 && *ip.get(9)? == 17;
                    (is_whole && ip.len() >= header + 8).then(|| number(14 + header + 2))?
                }
                (0x86dd, 6) => (*ip.get(6)? == 17 && ip.len() >= 48).then(|| number(56))?,
                _ => None,
            }
        };
        filters.is_empty()
            || filters.iter().any(|filter| match *filter {
                XdpFilter::Udp(port) => udp_port() == Some(port),
                XdpFilter::Vlan(id) => {
                    matches!(ethertype, Some(0x8100 | 0x88a8))
                        && frame.len() >= 18
                        && number(14).is_some_and(|tag| tag & 0xfff == id)
                }
                XdpFilter::DstMac(mac) => frame[..6] == mac.0,
                XdpFilter::EtherType(wanted) => ethertype == Some(wanted),
            })
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
        let mac = |last| XdpFilter::DstMac(MacAddress([2, 0, 0, 0, 1, last]));
        let each = [
            XdpFilter::Udp(4789),
            XdpFilter::Udp(53),
            XdpFilter::Vlan(10),
            XdpFilter::Vlan(0xffe),
            mac(2),
            XdpFilter::EtherType(0x88b5),
            XdpFilter::EtherType(0x8100),
        ];
        let mut sets: Vec<Vec<XdpFilter>> = each.iter().map(|filter| vec![*filter]).collect();
        sets.extend([vec![], each.to_vec(), vec![mac(1), XdpFilter::Vlan(11), XdpFilter::Udp(46_354)]]);
        // As many as a port may have, each of the longest kind.
        sets.push((0..32).map(|port| XdpFilter::Udp(4780 + port)).collect());
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
