//! The link, which the PHY negotiates.

use std::time::Duration;

use ringpass_pci::registers::Window;
use ringpass_pci::registers::igb::{bits::*, *};
use ringpass_port::{Error, Link};

use crate::device::Device;

/// Control register of the PHY (IEEE 802.3, 22.2.4.1), and the bits set in it.
const PHY_CONTROL: u32 = 0;
const PHY_ENABLE_NEGOTIATION: u32 = 1 << 12;
const PHY_RESTART_NEGOTIATION: u32 = 1 << 9;

/// Makes the MAC follow the negotiation, and restarts that (4.5.7).
pub(crate) fn init(device: &Device) -> Result<(), Error> {
    let window = &device.window;
    window.set(CTRL_EXT, CTRL_EXT_DRV_LOAD);
    window.clear(CTRL, CTRL_FRCSPD | CTRL_FRCDPX);
    window.set(CTRL, CTRL_SLU);
    if window.read(CTRL_EXT) & CTRL_EXT_LINK_MODE_MASK == 0 {
        restart_negotiation(device)
    } else {
        // 4.5.7.3: fiber and backplanes.
        window.set(PCS_LCTL, PCS_LCTL_AN_ENABLE | PCS_LCTL_AN_RESTART);
        Ok(())
    }
}

/// Restarts the PHY's negotiation (4.5.7.2). The other bits of the control register keep their values.
fn restart_negotiation(device: &Device) -> Result<(), Error> {
    let mine = lock_phy(device)?;
    let done = access_phy(device, MDIC_READ).and_then(|control| {
        access_phy(device, MDIC_WRITE | control | PHY_ENABLE_NEGOTIATION | PHY_RESTART_NEGOTIATION)
    });
    device.window.clear(SW_FW_SYNC, mine);
    done.map(drop)
}

/// Reads or writes the PHY's control register (8.2.4). Returns its value.
fn access_phy(device: &Device, operation: u32) -> Result<u32, Error> {
    device.window.write(MDIC, operation | MDIC_PHY_1 | PHY_CONTROL << 16);
    device.wait(MDIC, MDIC_R | MDIC_E, MDIC_R)?;
    Ok(device.window.read(MDIC) & 0xffff)
}

/// Locks the PHY for the driver (8.7). Returns the bit in SW_FW_SYNC that holds the lock. The semaphore guards
/// that register against the driver of the other port (SMBI) and against the firmware (SWESMBI).
fn lock_phy(device: &Device) -> Result<u32, Error> {
    let window = &device.window;
    let port = (window.read(STATUS) & STATUS_LAN_ID) >> 2;
    let (mine, firmware) = (SW_FW_SYNC_SW_PHY_0 << port, SW_FW_SYNC_SW_PHY_0 << (port + 16));
    // A driver that died while it held the semaphore never releases it, so after a while it is taken anyway.
    let _ = window.wait(SWSM, SWSM_SMBI, 0, Duration::from_millis(100));
    window.set(SWSM, SWSM_SWESMBI);
    let semaphore = device.wait(SWSM, SWSM_SWESMBI, SWSM_SWESMBI);
    let free = semaphore.and_then(|()| device.wait(SW_FW_SYNC, firmware, 0));
    if free.is_ok() {
        window.set(SW_FW_SYNC, mine);
    }
    window.clear(SWSM, SWSM_SMBI | SWSM_SWESMBI);
    free.map(|()| mine)
}

/// Returns the state of the link (8.2.2).
pub(crate) fn state(window: &Window) -> Link {
    let status = window.read(STATUS);
    let mbps = match status & STATUS_SPEED_MASK {
        STATUS_SPEED_10 => 10,
        STATUS_SPEED_100 => 100,
        _ => 1_000,
    };
    Link { up: status & STATUS_LU != 0, mbps }
}
