//! The body of a request to poll an attached port (`NETMAP_REQ_VALE_POLLING_ENABLE`, `_DISABLE`).

use super::Fields;

/// How a port is polled (`struct nmreq_vale_polling`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ValePolling {
    /// [`SINGLE_CPU`](Self::SINGLE_CPU) or [`MULTI_CPU`](Self::MULTI_CPU).
    pub mode: u32,
    /// First CPU.
    pub first_cpu: u32,
    /// Number of CPUs.
    pub cpus: u32,
}

impl ValePolling {
    /// Bytes of the body.
    pub const LEN: usize = 16;
    /// All rings are polled on one CPU.
    pub const SINGLE_CPU: u32 = 1;
    /// Each ring is polled on the CPU of its number.
    pub const MULTI_CPU: u32 = 2;

    /// Parses the body.
    pub fn parse(bytes: &[u8; Self::LEN]) -> Self {
        let mut fields = Fields(bytes);
        Self { mode: fields.u32(), first_cpu: fields.u32(), cpus: fields.u32() }
    }

    /// Serialises the body.
    pub fn bytes(&self) -> [u8; Self::LEN] {
        let bytes = [self.mode, self.first_cpu, self.cpus, 0].map(u32::to_le_bytes).concat();
        bytes.try_into().expect("16 bytes")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bodies_are_parsed_and_serialised() {
        let polling = ValePolling { mode: 1, first_cpu: 2, cpus: 3 };
        let bytes = [1, 0, 0, 0, 2, 0, 0, 0, 3, 0, 0, 0, 0, 0, 0, 0];
        assert_eq!((ValePolling::parse(&bytes), polling.bytes()), (polling, bytes));
    }
}
