//! Programs of the kernel's virtual machine, instruction by instruction (Linux, bpf/standardization/instruction-set).

/// The part of `struct xdp_md` that programs use: where a frame lies, and its queue.
#[repr(C)]
pub(super) struct Context {
    pub(super) data: u32,
    pub(super) data_end: u32,
    pub(super) data_meta: u32,
    ingress_ifindex: u32,
    pub(super) rx_queue_index: u32,
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
pub(super) const START: u64 = 7;
pub(super) const END: u64 = 8;

/// Operations (Linux, bpf/standardization/instruction-set): on immediate values unless they say otherwise.
pub(super) const LOAD_MAP: u64 = 0x18;
pub(super) const LOAD_WORD: u64 = 0x61;
pub(super) const LOAD_HALF: u64 = 0x69;
pub(super) const LOAD_BYTE: u64 = 0x71;
pub(super) const LOAD_DOUBLE: u64 = 0x79;
pub(super) const STORE_WORD: u64 = 0x63;
pub(super) const STORE_DOUBLE: u64 = 0x7b;
/// Stores eight bytes of an immediate value.
pub(super) const STORE_ZERO: u64 = 0x7a;
pub(super) const ADD: u64 = 0x07;
pub(super) const OR: u64 = 0x47;
pub(super) const ADD_REGISTER: u64 = 0x0f;
pub(super) const AND: u64 = 0x57;
pub(super) const SHIFT_LEFT: u64 = 0x67;
pub(super) const XOR: u64 = 0xa7;
pub(super) const MOVE: u64 = 0xb7;
pub(super) const MOVE_REGISTER: u64 = 0xbf;
pub(super) const CALL: u64 = 0x85;
pub(super) const EXIT: u64 = 0x95;
pub(super) const JUMP: u64 = 0x05;
pub(super) const JUMP_IF_LESS: u64 = 0xa5;
pub(super) const JUMP_IF_GREATER: u64 = 0x25;
pub(super) const JUMP_IF_GREATER_REGISTER: u64 = 0x2d;
/// These compare the lower half of a register.
pub(super) const JUMP_IF_EQUAL: u64 = 0x16;
pub(super) const JUMP_IF_NOT_EQUAL: u64 = 0x56;

/// Encodes an instruction: operation, destination and source register, offset and immediate value.
pub(super) const fn instruction(operation: u64, destination: u64, source: u64, offset: i16, value: i32) -> u64 {
    operation | destination << 8 | source << 12 | (offset as u16 as u64) << 16 | (value as u32 as u64) << 32
}

/// A place in a program that jumps go to.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct Label(usize);

/// A program that is being written. Jumps go forward only.
#[derive(Default)]
pub(super) struct Assembler {
    pub(super) code: Vec<u64>,
    labels: usize,
    /// Instructions that jump to a label which has no place yet.
    jumps: Vec<(usize, Label)>,
}

impl Assembler {
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

    pub(super) fn load(&mut self, operation: u64, to: u64, from: u64, offset: i16) {
        self.code.push(instruction(operation, to, from, offset, 0));
    }

    pub(super) fn jump(&mut self, to: Label) {
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

    /// Calls a function that the kernel has for programs.
    pub(super) fn call_kernel(&mut self, kind: u64, function: i32) {
        self.code.push(instruction(CALL, 0, kind, 0, function));
    }

    /// Jumps if the frame has fewer than `len` bytes from the address in `from` on.
    pub(super) fn jump_if_short(&mut self, from: u64, len: i32, to: Label) {
        self.registers(MOVE_REGISTER, R4, from);
        self.immediate(ADD, R4, len);
        self.jump_if_registers(JUMP_IF_GREATER_REGISTER, R4, END, to);
    }

    /// Loads two bytes of the frame. They are compared as they are, so values are swapped instead.
    pub(super) fn load_half(&mut self, offset: i16) {
        self.load(LOAD_HALF, R2, START, offset);
    }
}
