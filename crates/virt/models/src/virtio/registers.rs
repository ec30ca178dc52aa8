//! Registers of both interfaces: the modern one's structures in BAR 4 (4.1.4), the legacy one in BAR 0
//! (4.1.4.10).

use super::config::{Interface, LEGACY_FEATURES};
use super::device::{Device, FEATURES_OK};
use super::kicks::{Kicks, config_data};
use super::layout::*;
use super::lies::Lie;

const LINK_UP: u16 = 1;

impl Device {
    /// Returns the configuration structure of a network device (5.1.4).
    pub(super) fn net_config(&self) -> [u8; CONFIG_LEN] {
        let mut bytes = [0; CONFIG_LEN];
        bytes[..6].copy_from_slice(&self.mac);
        let status = if self.link_up { LINK_UP } else { 0 };
        bytes[6..].copy_from_slice([status, self.config_pairs, self.mtu].map(u16::to_le_bytes).as_flattened());
        bytes
    }

    fn read_net_config(&self, at: usize, bytes: usize) -> u32 {
        let config = self.net_config();
        (0..bytes).rev().fold(0, |value, i| value << 8 | u32::from(config.get(at + i).copied().unwrap_or(0)))
    }

    /// Writes the configuration. Only the MAC address is writable, by legacy drivers that have no command for
    /// it (5.1.4.2).
    fn write_net_config(&mut self, at: usize, value: u32, bytes: usize) {
        use ringpass_virtio::features::CTRL_MAC_ADDR;
        if self.is_modern() || self.has(CTRL_MAC_ADDR) {
            return;
        }
        for (at, byte) in (at..).zip(value.to_le_bytes()).take(bytes) {
            if let Some(cell) = self.mac.get_mut(at) {
                *cell = byte;
            }
        }
        self.filter.mac = self.mac;
    }

    pub(super) fn read_modern(&mut self, at: usize, bytes: usize) -> u32 {
        match at {
            ..COMMON_LEN => self.read_common(at, bytes),
            ISR => self.interrupts.take_isr().into(),
            DEVICE..NOTIFY => self.read_net_config(at - DEVICE, bytes),
            _ => 0,
        }
    }

    pub(super) fn write_modern(&mut self, at: usize, value: u32, bytes: usize, kicks: &Kicks) {
        match at {
            ..COMMON_LEN => self.write_common(at, value, bytes, kicks),
            DEVICE..NOTIFY => self.write_net_config(at - DEVICE, value, bytes),
            _ => {}
        }
    }

    /// Returns whether an access to the common configuration has the width of its field (4.1.3.1); fields of 64
    /// bits are accessed in halves. Counts an access that does not.
    fn is_right_width(&mut self, at: usize, bytes: usize) -> bool {
        let width = match at {
            0 | 4 | 8 | 12 | 32 | 36 | 40 | 44 | 48 | 52 => 4,
            20 | 21 => 1,
            _ => 2,
        };
        self.counters.wrong_accesses += u64::from(width != bytes);
        width == bytes
    }

    /// Reads the common configuration (4.1.4.3).
    fn read_common(&mut self, at: usize, bytes: usize) -> u32 {
        if !self.is_right_width(at, bytes) {
            return u32::MAX;
        }
        let half = |features: u64, select: u32| if select < 2 { (features >> (32 * select)) as u32 } else { 0 };
        let select = self.queue_select;
        match at {
            0 => self.offered_select,
            4 => half(self.offered(), self.offered_select),
            8 => self.accepted_select,
            12 => half(self.accepted, self.accepted_select),
            16 => self.interrupts.config_vector.into(),
            18 => self.config.queues() as u32,
            20 => self.status.into(),
            21 => {
                if self.pretends(Lie::ConfigNever) {
                    self.generation = self.generation.wrapping_add(1);
                }
                self.generation.into()
            }
            22 => select.into(),
            _ => {
                let queue = self.queue(select);
                let Some(queue) = queue else { return 0 };
                match at {
                    24 => queue.size.into(),
                    26 => queue.vector.into(),
                    28 => queue.enabled.into(),
                    30 => select.into(),
                    32..56 => (queue.areas[(at - 32) / 8] >> (8 * (at % 8))) as u32,
                    56 => config_data(select).into(),
                    58 => queue.resetting.into(),
                    _ => 0,
                }
            }
        }
    }

    fn write_common(&mut self, at: usize, value: u32, bytes: usize, kicks: &Kicks) {
        use ringpass_virtio::features::RING_RESET;
        if !self.is_right_width(at, bytes) {
            return;
        }
        let (vector, can_reset) = (self.interrupts.accept(value as u16), self.has(RING_RESET));
        let agreed = self.status & FEATURES_OK != 0;
        match at {
            0 => self.offered_select = value,
            8 => self.accepted_select = value,
            // Features can no longer be changed after FEATURES_OK (3.1.1).
            12 if self.accepted_select < 2 && !agreed => {
                let shift = 32 * self.accepted_select;
                self.accepted = self.accepted & !(0xffff_ffff << shift) | u64::from(value) << shift;
            }
            16 => self.interrupts.config_vector = vector,
            20 => self.set_status(value as u8, kicks),
            22 => self.queue_select = value as u16,
            _ => {
                let select = self.queue_select;
                let Some(queue) = self.queue(select) else { return };
                match at {
                    24 if !queue.enabled && (1..=queue.most).contains(&(value as u16)) => queue.size = value as u16,
                    26 => queue.vector = vector,
                    28 if value == 1 && !queue.enabled && agreed => self.enable(select),
                    32..56 if !queue.enabled => {
                        let (area, shift) = (&mut queue.areas[(at - 32) / 8], 8 * (at % 8));
                        *area = *area & !(0xffff_ffff << shift) | u64::from(value) << shift;
                    }
                    58 if value == 1 && can_reset => self.reset_queue(select),
                    _ => {}
                }
            }
        }
    }

    /// Returns the offset of the network configuration in BAR 0: after the MSI-X vectors, if MSI-X is on.
    fn legacy_config(&self) -> usize {
        if self.interrupts.msix() { 24 } else { 20 }
    }

    pub(super) fn read_legacy(&mut self, at: usize, bytes: usize) -> u32 {
        let config = self.legacy_config();
        if at >= config {
            return self.read_net_config(at - config, bytes);
        }
        let select = self.queue_select;
        match (at, bytes) {
            (0, 4) => (self.offered() & LEGACY_FEATURES) as u32,
            (4, 4) => self.accepted as u32,
            (8, 4) => self.queue(select).map_or(0, |queue| queue.page),
            (12, 2) => self.queue(select).map_or(0, |queue| queue.most.into()),
            (14, 2) => select.into(),
            (18, 1) => self.status.into(),
            (19, 1) => self.interrupts.take_isr().into(),
            (20, 2) => self.interrupts.config_vector.into(),
            (22, 2) => self.queue(select).map_or(0xffff, |queue| queue.vector.into()),
            _ => {
                self.counters.wrong_accesses += 1;
                u32::MAX
            }
        }
    }

    pub(super) fn write_legacy(&mut self, at: usize, value: u32, bytes: usize, kicks: &Kicks) {
        let config = self.legacy_config();
        if at >= config {
            return self.write_net_config(at - config, value, bytes);
        }
        let (select, vector) = (self.queue_select, self.interrupts.accept(value as u16));
        match (at, bytes) {
            (4, 4) => self.accepted = u64::from(value) & self.offered() & LEGACY_FEATURES,
            (8, 4) => {
                let Some(queue) = self.queue(select) else { return };
                if value == 0 {
                    // Page 0 means that the driver no longer uses the queue (4.1.5.1.3.1).
                    return queue.reset();
                }
                (queue.page, queue.areas) = (value, Self::legacy_areas(value, queue.most));
                self.enable(select);
            }
            (14, 2) => self.queue_select = value as u16,
            (18, 1) => self.set_status(value as u8 & !FEATURES_OK, kicks),
            (20, 2) => self.interrupts.config_vector = vector,
            (22, 2) => {
                if let Some(queue) = self.queue(select) {
                    queue.vector = vector;
                }
            }
            _ => self.counters.wrong_accesses += 1,
        }
    }

    /// Returns whether a BAR exists with the configured interface.
    pub(super) fn has_bar(&self, bar: usize) -> bool {
        match bar {
            LEGACY_BAR => self.config.interface != Interface::Modern,
            MODERN_BAR => self.config.interface != Interface::Legacy,
            _ => false,
        }
    }
}
