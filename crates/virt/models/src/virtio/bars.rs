//! Accesses of drivers to the BARs.

use std::sync::Arc;

use ringpass_pci::registers::IoRegion;

use super::layout;
use super::shared::Shared;

impl Shared {
    /// Carries out a driver's read of `bytes` bytes (1, 2 or 4) at offset `at` of a BAR. A removed device reads
    /// as ones.
    pub(super) fn read(&self, bar: usize, at: usize, bytes: usize) -> u32 {
        self.access(|device| match bar {
            _ if device.is_removed() => u32::MAX,
            layout::LEGACY_BAR => device.read_legacy(at, bytes),
            _ => device.read_modern(at, bytes),
        })
    }

    /// Carries out a driver's write. Notifications do not take the device's lock, except for commands, which
    /// are carried out at once.
    pub(super) fn write(&self, bar: usize, at: usize, value: u32, bytes: usize) {
        let commanded = match bar {
            layout::LEGACY_BAR if at == layout::LEGACY_NOTIFY => self.kicks.legacy(value as u16),
            layout::MODERN_BAR if at >= layout::NOTIFY => {
                self.kicks.modern((at - layout::NOTIFY) / layout::MULTIPLIER, value, bytes)
            }
            _ => {
                self.change(|device| match bar {
                    _ if device.is_removed() => {}
                    layout::LEGACY_BAR => device.write_legacy(at, value, bytes, &self.kicks),
                    _ => device.write_modern(at, value, bytes, &self.kicks),
                });
                false
            }
        };
        if commanded {
            self.access(|device| {
                if !device.is_removed() {
                    device.command(&self.kicks)
                }
            });
        }
    }
}

/// A BAR as an [`IoRegion`].
pub(super) struct BarRegion {
    pub(super) shared: Arc<Shared>,
    pub(super) bar: usize,
    pub(super) len: usize,
}

impl BarRegion {
    fn read(&self, offset: usize, bytes: usize) -> u32 {
        assert!(offset.is_multiple_of(bytes) && offset + bytes <= self.len, "{bytes} bytes at {offset:#x}");
        self.shared.read(self.bar, offset, bytes)
    }

    fn write(&self, offset: usize, value: u32, bytes: usize) {
        assert!(offset.is_multiple_of(bytes) && offset + bytes <= self.len, "{bytes} bytes at {offset:#x}");
        self.shared.write(self.bar, offset, value, bytes);
    }
}

impl IoRegion for BarRegion {
    fn len(&self) -> usize {
        self.len
    }

    fn description(&self) -> String {
        "a model".into()
    }

    fn read8(&self, offset: usize) -> u8 {
        self.read(offset, 1) as u8
    }

    fn read16(&self, offset: usize) -> u16 {
        self.read(offset, 2) as u16
    }

    fn read32(&self, offset: usize) -> u32 {
        self.read(offset, 4)
    }

    fn write8(&self, offset: usize, value: u8) {
        self.write(offset, value.into(), 1);
    }

    fn write16(&self, offset: usize, value: u16) {
        self.write(offset, value.into(), 2);
    }

    fn write32(&self, offset: usize, value: u32) {
        self.write(offset, value, 4);
    }
}
