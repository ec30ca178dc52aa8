//! Requests from before API 14 (`struct nmreq`), which `nm_open` still makes.

use super::{Fields, InvalidRequest, Mode, Register};

/// A legacy request, as made and as granted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LegacyRequest {
    /// Name of the port, as it came.
    pub name: String,
    /// Name of the port in a request's header: with the end of a pipe that the mode of the request selects.
    pub port: String,
    /// The fields that a registration has, too.
    pub register: Register,
    /// Command for a VALE switch; 0 for a registration.
    pub command: u16,
    /// First argument of the command.
    pub argument: u16,
    /// Returned as they came.
    version: u32,
    ring: u16,
    flags: u32,
    spare: u32,
}

/// In the request's `ring`: `poll` does not synchronise Tx rings, or does synchronise Rx rings; mask of the
/// ring's number.
const NO_TX_POLL: u16 = 0x1000;
const DO_RX_POLL: u16 = 0x8000;
const RING: u16 = 0xfff;
/// In the request's `ring` if its flags have no mode: one ring, or the host's.
const ONE_RING: u16 = 0x4000;
const HOST: u16 = 0x2000;
/// In the request's flags: mask of the mode.
const MODE: u32 = 0xf;

impl LegacyRequest {
    /// Bytes of a request.
    pub const LEN: usize = 60;

    /// Parses a request.
    pub fn parse(bytes: &[u8; Self::LEN]) -> Result<Self, InvalidRequest> {
        let mut fields = Fields(bytes);
        let name = fields.text::<16>()?;
        let version = fields.u32();
        if version < 14 {
            return Err(InvalidRequest::Version(version));
        }
        let (offset, memory_size) = (fields.u32().into(), fields.u32().into());
        let (slots, rings) = ([fields.u32(), fields.u32()], [fields.u16(), fields.u16()]);
        let ring = fields.u16();
        let command = fields.u16();
        let argument = fields.u16();
        let memory_id = fields.u16();
        let extra_buffers = fields.u32();
        let flags = fields.u32();
        let spare = fields.u32();
        let mode = match flags & MODE {
            0 if ring & HOST != 0 => Mode::Host,
            0 if ring & ONE_RING != 0 => Mode::OneNic,
            0 => Mode::AllNic,
            mode => Mode::of(mode)?,
        };
        let number = ring & RING;
        let (port, mode, number) = match mode {
            Mode::PipeMaster => (format!("{name}{{{number}"), Mode::AllNic, 0),
            Mode::PipeSlave => (format!("{name}}}{number}"), Mode::AllNic, 0),
            mode => (name.clone(), mode, number),
        };
        let came = flags;
        let no_tx_poll = if ring & NO_TX_POLL != 0 { super::register::NO_TX_POLL } else { 0 };
        let do_rx_poll = if ring & DO_RX_POLL != 0 { super::register::DO_RX_POLL } else { 0 };
        let flags = u64::from(flags & !MODE) | no_tx_poll | do_rx_poll;
        let register = Register {
            offset,
            memory_size,
            slots,
            rings,
            memory_id,
            ring: number,
            mode,
            extra_buffers,
            flags,
            ..Register::default()
        };
        Ok(Self { name, port, register, command, argument, version, ring, flags: came, spare })
    }

    /// Serialises the reply: what was granted replaces what was requested.
    pub fn bytes(&self) -> [u8; Self::LEN] {
        let Register { offset, memory_size, slots, rings, memory_id, extra_buffers, .. } = self.register;
        let mut bytes: Vec<u8> = self.name.bytes().take(15).chain(std::iter::repeat(0)).take(16).collect();
        bytes.extend(
            [self.version, offset as u32, memory_size as u32, slots[0], slots[1]].map(u32::to_le_bytes).concat(),
        );
        let halves = [rings[0], rings[1], self.ring, self.command, self.argument, memory_id];
        bytes.extend(halves.map(u16::to_le_bytes).concat());
        bytes.extend([extra_buffers, self.flags, self.spare].map(u32::to_le_bytes).concat());
        bytes.try_into().expect("60 bytes")
    }
}

#[cfg(test)]
mod tests {
    use super::super::register;
    use super::*;

    #[test]
    fn requests_are_taken_apart_and_answered() {
        let mut bytes = [0; 60];
        bytes[..5].copy_from_slice(b"em0{1");
        bytes[16] = 14;
        for (at, value) in [(28, 1), (32, 2), (36, 3), (38, 4), (42, 7), (44, 8), (46, 9), (48, 10)] {
            bytes[at] = value;
        }
        bytes[40..42].copy_from_slice(&(NO_TX_POLL | DO_RX_POLL | 5).to_le_bytes());
        bytes[52..56].copy_from_slice(&0x804_u32.to_le_bytes());
        bytes[56] = 11;
        let request = LegacyRequest::parse(&bytes).unwrap();
        let LegacyRequest { name, command, argument, register, .. } = &request;
        assert_eq!((name.as_str(), *command, *argument), ("em0{1", 7, 8));
        let right = Register {
            slots: [1, 2],
            rings: [3, 4],
            memory_id: 9,
            ring: 5,
            mode: Mode::OneNic,
            extra_buffers: 10,
            flags: register::EXCLUSIVE | register::NO_TX_POLL | register::DO_RX_POLL,
            ..Register::default()
        };
        assert_eq!(*register, right);
        assert!(request.bytes() == bytes, "the same again");
        let mut granted = request;
        (granted.register.offset, granted.register.memory_size) = (0x0102_0304, 0x0a0b_0c0d);
        let answer = granted.bytes();
        assert_eq!((&answer[20..24], &answer[24..28]), (&[4, 3, 2, 1][..], &[13, 12, 11, 10][..]));
        for (version, right) in [(13, false), (14, true), (15, true), (16, true)] {
            bytes[16] = version;
            assert_eq!(LegacyRequest::parse(&bytes).is_ok(), right, "{version}");
        }
    }

    #[test]
    fn modes_come_from_the_flags_or_from_the_ring() {
        for (flags, ring, port, mode, number) in [
            (0, 0, "em0", Mode::AllNic, 0),
            (0, ONE_RING | 3, "em0", Mode::OneNic, 3),
            (0, HOST | ONE_RING, "em0", Mode::Host, 0),
            (1, ONE_RING | 3, "em0", Mode::AllNic, 3),
            (5, 7, "em0{7", Mode::AllNic, 0),
            (6, 7 | NO_TX_POLL, "em0}7", Mode::AllNic, 0),
            (7, 0, "em0", Mode::Null, 0),
        ] {
            let mut bytes = [0; 60];
            bytes[..3].copy_from_slice(b"em0");
            (bytes[16], bytes[52]) = (14, flags);
            bytes[40..42].copy_from_slice(&u16::to_le_bytes(ring));
            let request = LegacyRequest::parse(&bytes).unwrap();
            let Register { mode: is, ring: of, .. } = request.register;
            assert_eq!((&request.port[..], is, of), (port, mode, number));
            assert!(request.bytes() == bytes, "the name stays as it came");
        }
        let mut bytes = [b'x'; 60];
        bytes[16..].fill(0);
        (bytes[16], bytes[52]) = (14, 15);
        assert_eq!(LegacyRequest::parse(&bytes), Err(InvalidRequest::Mode(15)));
        bytes[52] = 0;
        // A name that does not end loses its last byte.
        assert_eq!(LegacyRequest::parse(&bytes).unwrap().name, "x".repeat(15));
    }
}
