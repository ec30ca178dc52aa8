//! What a program requests by `NETMAP_REQ_OPT_EXTMEM`: a memory of its own for a port.

use super::Fields;
use crate::Pools;

/// Pools in a program's own memory, as it requests them and as they are granted (`struct nmreq_pools_info`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AskedMemory {
    /// Bytes of the memory.
    pub size: u64,
    /// Granted: number of the memory.
    pub id: u16,
    /// Interface descriptors, rings and buffers.
    pub pools: [AskedPool; 3],
}

/// A pool in such a memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AskedPool {
    /// Granted: offset in the memory.
    pub offset: u64,
    /// Number of objects; 0 for a usual one.
    pub objects: u32,
    /// Bytes of an object; 0 for a usual one.
    pub bytes: u32,
}

/// Bytes of an interface descriptor, whatever a program requests.
const INTERFACE: u32 = 1024;
/// Largest number of buffers, which bounds the time that the server takes to make its books: 2 GiB of the usual size.
const MAX_BUFFERS: u32 = 1 << 20;
/// Numbers and bytes of objects where a program requests none.
const USUAL: [AskedPool; 3] = [
    AskedPool { offset: 0, objects: 128, bytes: INTERFACE },
    AskedPool { offset: 0, objects: 64, bytes: 36_864 },
    AskedPool { offset: 0, objects: u32::MAX, bytes: 2048 },
];

impl AskedMemory {
    /// Bytes of it.
    pub const LEN: usize = 64;

    /// Parses it. Any bytes are valid.
    pub fn parse(bytes: &[u8; Self::LEN]) -> Self {
        let mut fields = Fields(bytes);
        let size = fields.u64();
        let id = fields.u64() as u16;
        let mut pool = || AskedPool { offset: fields.u64(), objects: fields.u32(), bytes: fields.u32() };
        Self { size, id, pools: [pool(), pool(), pool()] }
    }

    /// Serialises it.
    pub fn bytes(&self) -> Vec<u8> {
        let mut bytes = [self.size, self.id.into()].map(u64::to_le_bytes).concat();
        for AskedPool { offset, objects, bytes: size } in &self.pools {
            bytes.extend(offset.to_le_bytes());
            bytes.extend([objects, size].map(|word| word.to_le_bytes()).concat());
        }
        bytes
    }

    /// Returns the pools that fit into the memory: as many buffers as are requested, or as there is room for. `None` if there is
    /// not enough for a ring with its buffers.
    pub fn fitting(&self) -> Option<Pools> {
        let pool = |number: usize| {
            let (asked, usual) = (self.pools[number], USUAL[number]);
            let or = |asked: u32, usual: u32| if asked == 0 { usual } else { asked };
            (or(asked.objects, usual.objects), or(asked.bytes, usual.bytes))
        };
        let [(interfaces, _), (rings, ring), (buffers, buffer_size)] = [pool(0), pool(1), pool(2)];
        let pools = Pools { interfaces, ring_bytes: rings as usize * ring as usize, buffers, buffer_size };
        let left = self.size.checked_sub(pools.checked_buffers_at()? as u64)?;
        let fitting = u32::try_from(left / u64::from(buffer_size)).unwrap_or(u32::MAX);
        let buffers = buffers.min(fitting).min(MAX_BUFFERS);
        Pools { buffers, ..pools }.checked().ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked(size: u64, pools: [(u32, u32); 3]) -> AskedMemory {
        AskedMemory { size, id: 0, pools: pools.map(|(objects, bytes)| AskedPool { offset: 0, objects, bytes }) }
    }

    #[test]
    fn bytes_come_as_they_go() {
        let mut bytes: [u8; 64] = std::array::from_fn(|n| n as u8);
        bytes[10..16].fill(0);
        let asked = AskedMemory::parse(&bytes);
        assert_eq!((asked.id, asked.pools[2].bytes), (0x0908, 0x3f3e_3d3c));
        assert_eq!(asked.bytes(), bytes);
    }

    fn usual_sizes(buffer: u32) -> [(u32, u32); 3] {
        [(0, 0), (0, 0), (0, buffer)]
    }

    #[test]
    fn buffers_take_what_is_left() {
        let usual = [(128, 1024), (64, 36_864), (5000, 2048)];
        let pools = asked(16 << 20, usual).fitting().unwrap();
        assert_eq!((pools.interfaces, pools.buffers, pools.buffer_size), (128, 5000, 2048));
        let less = asked(8 << 20, usual).fitting().unwrap();
        assert!(less.buffers < 5000 && less.buffers_at() + less.buffers as usize * 2048 <= 8 << 20);
        assert_eq!(asked(1 << 40, usual_sizes(64)).fitting().unwrap().buffers, MAX_BUFFERS);
        assert_eq!(asked(8 << 20, [(0, 0); 3]).fitting().unwrap().buffers, less.buffers);
        for (size, pools) in [
            (0, usual),
            (4096, usual),
            (16 << 20, [(1, 1), (u32::MAX, u32::MAX), (1, 1)]),
            (16 << 20, [(u32::MAX, 1024), (64, 36_864), (5000, 2048)]),
            (16 << 20, [(128, 1024), (64, 36_864), (5000, 2047)]),
            (u64::MAX, [(128, 1024), (64, 36_864), (5000, u32::MAX)]),
        ] {
            assert_eq!(asked(size, pools).fitting(), None, "{size} {pools:?}");
        }
    }
}
