//! I/O ports accessed by the processor's own instructions. These take some hundred cycles; a system call would
//! add a thousand.

use std::arch::asm;
use std::io;

use crate::registers::IoRegion;

use crate::region_io::check;

/// A range of I/O ports that the kernel lets this thread use, and threads that it starts later, which inherit
/// the permission. An access from another thread ends the process (SIGSEGV). Privileges that are dropped later
/// do not take the permission away; it lasts as long as its threads.
pub(crate) struct IoPorts {
    first: u16,
    len: usize,
}

impl IoPorts {
    /// Requests permission for `len` ports from `first` on (`ioperm(2)`), which only root may do.
    pub(crate) fn open(first: u64, len: u64) -> io::Result<Self> {
        let inside = first.checked_add(len).is_some_and(|end| end <= 1 << 16);
        let first_port = u16::try_from(first).ok().filter(|_| inside && len > 0);
        let first_port = first_port.ok_or_else(|| io::Error::other(format!("no I/O ports: {len} at {first:#x}")))?;
        // SAFETY: `ioperm` only changes which I/O ports this thread may use; it touches no memory.
        match unsafe { libc::ioperm(first, len, 1) } {
            0 => Ok(Self { first: first_port, len: len as usize }),
            _ => Err(io::Error::last_os_error()),
        }
    }

    /// Returns the port of a register. Panics if the access is unaligned or out of range.
    fn port(&self, offset: usize, width: usize) -> u16 {
        check(offset, width, self.len);
        // This does not overflow: `check` ensures that the offset is below `len`, and `open` that the range
        // ends by port 65,535.
        self.first + offset as u16
    }
}

/// One access to a port. Neither the compiler nor the processor moves memory accesses across it: `in` and `out`
/// wait for all earlier writes.
macro_rules! access {
    (read $port:expr, $value:ty, $instruction:literal, $register:tt) => {{
        let port: u16 = $port;
        let value: $value;
        // SAFETY: `port` has checked that the port is in the device's range, for which `open` got permission.
        // The instruction touches no memory of this process and changes only the registers named here. A thread
        // without the permission gets a fault, which ends the process.
        unsafe { asm!($instruction, in("dx") port, out($register) value, options(nostack, preserves_flags)) };
        value
    }};
    (write $port:expr, $value:expr, $instruction:literal, $register:tt) => {{
        let (port, value) = ($port, $value);
        // SAFETY: `port` has checked that the port is in the device's range, for which `open` got permission.
        // The instruction reads only the registers named here. What the device then does is its driver's
        // responsibility.
        unsafe { asm!($instruction, in("dx") port, in($register) value, options(nostack, preserves_flags)) };
    }};
}

impl IoRegion for IoPorts {
    fn len(&self) -> usize {
        self.len
    }

    fn description(&self) -> String {
        "I/O ports by in and out instructions (ioperm)".into()
    }

    fn read8(&self, offset: usize) -> u8 {
        access!(read self.port(offset, 1), u8, "in al, dx", "al")
    }

    fn read16(&self, offset: usize) -> u16 {
        access!(read self.port(offset, 2), u16, "in ax, dx", "ax")
    }

    fn read32(&self, offset: usize) -> u32 {
        access!(read self.port(offset, 4), u32, "in eax, dx", "eax")
    }

    fn write8(&self, offset: usize, value: u8) {
        access!(write self.port(offset, 1), value, "out dx, al", "al")
    }

    fn write16(&self, offset: usize, value: u16) {
        access!(write self.port(offset, 2), value, "out dx, ax", "ax")
    }

    fn write32(&self, offset: usize, value: u32) {
        access!(write self.port(offset, 4), value, "out dx, eax", "eax")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ports_that_do_not_exist_are_refused() {
        for (first, len) in [(0xfff0, 0x11), (0x10000, 1), (0xc000, 0), (u64::MAX, 2), (1, u64::MAX)] {
            let error = IoPorts::open(first, len).map(drop).expect_err("outside");
            assert!(error.to_string().contains("no I/O ports"), "{error}");
        }
    }
}
