//! The X540's copper PHY, behind MSCA and MSRWD (8.2.3.22.11, 8.2.3.22.12), with the registers of IEEE 802.3
//! clause 45 that drivers read. On NICs without a PHY no device answers on this bus.

/// MSCA: register, or in an address cycle the new address.
const REGISTER: u32 = 0xffff;
const DEVICE_SHIFT: u32 = 16;
const PHY_SHIFT: u32 = 21;
const OPERATION_MASK: u32 = 0b11 << 26;
const OPERATION_WRITE: u32 = 0b01 << 26;
const OPERATION_READ_NEXT: u32 = 0b10 << 26;
const OPERATION_READ: u32 = 0b11 << 26;
/// Starts a cycle; clears itself at the end of the cycle.
const COMMAND: u32 = 1 << 30;

/// Devices in the PHY: PMA/PMD, PCS, PHY XS, auto-negotiation, and the first vendor-specific one.
const PMA: u32 = 1;
const PCS: u32 = 3;
const XS: u32 = 4;
const AN: u32 = 7;
const VENDOR: u32 = 30;
/// Status register of each device; bit 2 is the link.
const STATUS: u32 = 1;
const LINK: u16 = 1 << 2;
/// Self-clearing bits of control registers: reset, and restart of auto-negotiation.
const RESET: u16 = 1 << 15;
const RESTART: u16 = 1 << 9;

pub(super) struct Phy {
    /// Device, register, value, and mask of the writable bits.
    registers: [(u32, u32, u16, u16); 25],
    /// Address set by the last address cycle.
    address: u32,
}

impl Phy {
    pub(super) fn new() -> Self {
        let registers = [
            (PMA, 0, 0x2040, 0x7fff),
            (PMA, STATUS, 0x0002, 0),
            // Identifier: X540, revision 0.
            (PMA, 2, 0x0154, 0),
            (PMA, 3, 0x0200, 0),
            // Speeds: 10 Gbit/s, 1 Gbit/s, 100 Mbit/s.
            (PMA, 4, 0x0031, 0),
            (PMA, 5, 0x009a, 0),
            (PMA, 6, 0x4000, 0),
            // Device present.
            (PMA, 8, 0x8000, 0),
            // Abilities: 10GBASE-T, 1000BASE-T, 100BASE-TX.
            (PMA, 11, 0x00a4, 0),
            (PCS, 0, 0x2040, 0x7fff),
            (PCS, STATUS, 0x0002, 0),
            (PCS, 8, 0x8000, 0),
            (XS, 0, 0x2040, 0x7fff),
            (XS, STATUS, 0x0002, 0),
            (XS, 8, 0x8000, 0),
            (AN, 0, 0x3000, 0x7dff),
            (AN, STATUS, 0x0009, 0),
            // Abilities advertised, and those of the partner: 100BASE-TX, both kinds of pause; then 10GBASE-T.
            (AN, 16, 0x0d01, 0xffff),
            (AN, 19, 0xcd01, 0),
            (AN, 32, 0x1000, 0xffff),
            (AN, 33, 0x7800, 0),
            // Vendor-specific: 1000BASE-T is advertised; the link runs at 10 Gbit/s.
            (AN, 0xc400, 0x8000, 0xffff),
            (AN, 0xc800, 0x0006, 0),
            (VENDOR, STATUS, 0x0000, 0),
            (VENDOR, 0x20, 0x0200, 0),
        ];
        Self { registers, address: 0 }
    }

    /// Carries out a write to MSCA; `data` is MSRWD. Returns the new values of both.
    pub(super) fn cycle(&mut self, command: u32, data: u32, present: bool, up: bool) -> (u32, u32) {
        if command & COMMAND == 0 {
            return (command, data);
        }
        let (device, phy) = (command >> DEVICE_SHIFT & 0x1f, command >> PHY_SHIFT & 0x1f);
        let mine = present && phy == 0;
        let data = match command & OPERATION_MASK {
            OPERATION_WRITE => {
                if mine {
                    self.write(device, data as u16);
                }
                data
            }
            OPERATION_READ | OPERATION_READ_NEXT => {
                // No device drives the line, so it reads as ones.
                let read = if mine { self.read(device, up) } else { 0xffff };
                data & 0xffff | u32::from(read) << 16
            }
            _ => {
                self.address = command & REGISTER;
                data
            }
        };
        if command & OPERATION_MASK == OPERATION_READ_NEXT {
            self.address = (self.address + 1) & REGISTER;
        }
        (command & !COMMAND, data)
    }

    fn read(&self, device: u32, up: bool) -> u16 {
        let found = self.registers.iter().find(|register| (register.0, register.1) == (device, self.address));
        let value = found.map_or(0, |register| register.2);
        match (device, self.address) {
            // Bit 5: auto-negotiation is complete.
            (AN, STATUS) if up => value | LINK | 1 << 5,
            (VENDOR, STATUS) if up => value | 1 << 3,
            (PMA | PCS | XS, STATUS) if up => value | LINK,
            _ => value,
        }
    }

    fn write(&mut self, device: u32, value: u16) {
        let found = self.registers.iter_mut().find(|register| (register.0, register.1) == (device, self.address));
        if let Some((_, address, register, writable)) = found {
            *register = *register & !*writable | value & *writable;
            if *address == 0 {
                *register &= !(RESET | RESTART);
            }
        }
    }
}
