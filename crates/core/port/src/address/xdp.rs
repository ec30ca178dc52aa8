//! The address `xdp:NAME[,zerocopy|copy][,mode=native|generic][,busy-poll][,timestamps][,filter=…]`, or `xdp:NAME,socket=PATH`.

use std::path::PathBuf;

use super::interface;
use crate::FrameFilter;

/// Most filters of a port.
const MAX_FILTERS: usize = 32;

/// Options of `xdp`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct XdpConfig {
    /// Name of the interface.
    pub interface: String,
    /// Socket of the process that has attached the program (`ringpass xdp attach`), with the rest of these options; this process
    /// attaches one itself, if not given.
    pub socket: Option<PathBuf>,
    /// How frames come into the pool's memory; without a copy if the driver can, if not given.
    pub transfer: Option<XdpTransfer>,
    /// Where the program is attached; native if the driver can, else generic, if not given.
    pub mode: Option<XdpMode>,
    /// Busy polling: the port drives the card's receiving itself instead of waiting for its interrupts.
    pub busy_poll: bool,
    /// Received frames have the [time](crate::RxQueue::rx_timestamps) of their arrival, from the card where it notes it.
    pub timestamps: bool,
    /// Frames that the port receives: those that at least one filter takes, or all if there is none. The kernel gets the others.
    pub filters: Vec<FrameFilter>,
}

/// How frames pass between a card and the memory of an XDP socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum XdpTransfer {
    /// The card reads and writes that memory.
    ZeroCopy,
    /// The kernel copies each frame.
    Copy,
}

/// Where an XDP program is attached to an interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum XdpMode {
    /// In the driver.
    Native,
    /// In the kernel's stack, with any driver.
    Generic,
}

pub(super) fn xdp(argument: &str) -> Result<XdpConfig, String> {
    let mut parts = argument.split(',');
    let mut config =
        XdpConfig { interface: interface("xdp", parts.next().unwrap_or_default())?, ..XdpConfig::default() };
    let mut all = false;
    for option in parts {
        match option {
            "zerocopy" => config.transfer = Some(XdpTransfer::ZeroCopy),
            "copy" => config.transfer = Some(XdpTransfer::Copy),
            "mode=native" => config.mode = Some(XdpMode::Native),
            "mode=generic" => config.mode = Some(XdpMode::Generic),
            "busy-poll" => config.busy_poll = true,
            "timestamps" => config.timestamps = true,
            "filter=all" => all = true,
            option => {
                if let Some(path) = option.strip_prefix("socket=").filter(|path| !path.is_empty()) {
                    config.socket = Some(path.into());
                    continue;
                }
                let Some(filter) = option.strip_prefix("filter=") else {
                    return Err(format!(
                        "'xdp' has no option '{option}'; it has zerocopy, copy, mode=native, mode=generic, busy-poll, timestamps, filter=… and socket=…"
                    ));
                };
                config.filters.push(filter.parse()?);
            }
        }
    }
    if config.filters.len() > MAX_FILTERS {
        return Err(format!("these are {} filters; a port has at most {MAX_FILTERS}", config.filters.len()));
    }
    if (config.transfer, config.mode) == (Some(XdpTransfer::ZeroCopy), Some(XdpMode::Generic)) {
        return Err("in generic mode the kernel has a copy already; take mode=native with zerocopy".into());
    }
    if all {
        config.filters.clear();
    }
    let own = XdpConfig { interface: config.interface.clone(), socket: config.socket.clone(), ..XdpConfig::default() };
    if config.socket.is_some() && (all || config != own) {
        return Err("with socket= the other options are those of 'ringpass xdp attach'; give them there".into());
    }
    Ok(config)
}
