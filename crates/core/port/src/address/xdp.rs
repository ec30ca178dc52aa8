//! The address `xdp:NAME[,copy][,mode=native|generic]`.

use super::interface;

/// Options of `xdp`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct XdpConfig {
    /// Name of the interface.
    pub interface: String,
    /// Where the program is attached; native if the driver can, else generic, if not given.
    pub mode: Option<XdpMode>,
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
    let interface = interface("xdp", parts.next().unwrap_or_default())?;
    let mut config = XdpConfig { interface, mode: None };
    for option in parts {
        match option {
            // What is done in any case.
            "copy" => {}
            "mode=native" => config.mode = Some(XdpMode::Native),
            "mode=generic" => config.mode = Some(XdpMode::Generic),
            "zerocopy" => return Err("zero-copy is not supported yet; leave zerocopy out".into()),
            option => {
                return Err(format!("'xdp' has no option '{option}'; it has copy, mode=native and mode=generic"));
            }
        }
    }
    Ok(config)
}
