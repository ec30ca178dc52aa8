//! Checks of the devices that [`devices::make`](crate::devices::make) leaves, by sysfs(5).

use std::collections::BTreeSet;
use std::fs;
use std::path::PathBuf;

use crate::devices::Device;

/// Returns the networks of which this host, or network namespace, has a device, in ascending order.
pub fn networks() -> Vec<u32> {
    let names = fs::read_dir("/sys/class/net").into_iter().flatten().flatten().map(|entry| entry.file_name());
    let networks = names.filter_map(|name| Some(Device::named(name.to_str()?)?.1));
    networks.collect::<BTreeSet<u32>>().into_iter().collect()
}

/// Returns what is wrong with a network's devices, in words; nothing if all is well.
pub fn faults(vni: u32) -> Vec<String> {
    let missing: Vec<_> = Device::ALL.iter().filter(|device| !path(**device, vni, "").exists()).collect();
    if !missing.is_empty() {
        return missing.iter().map(|device| format!("there is no {}", device.name(vni))).collect();
    }
    let mut faults = Vec::new();
    for device in Device::ALL {
        const UP: u32 = 1;
        let name = device.name(vni);
        let flags = read(device, vni, "flags");
        let flags = flags.strip_prefix("0x").and_then(|flags| u32::from_str_radix(flags, 16).ok());
        if flags.is_none_or(|flags| flags & UP == 0) {
            faults.push(format!("{name} is down"));
        }
        if device == Device::Bridge {
            continue;
        }
        let master = fs::read_link(path(device, vni, "master")).ok();
        let bridge = Device::Bridge.name(vni);
        if master.and_then(|link| Some(link.file_name()?.to_str()? == bridge)) != Some(true) {
            faults.push(format!("{name} is not in {bridge}"));
            continue;
        }
        let own = if device == Device::Vxlan { &["learning"][..] } else { &[] };
        for setting in own.iter().chain(&["unicast_flood", "multicast_flood", "broadcast_flood"]) {
            if read(device, vni, &format!("brport/{setting}")) != "0" {
                faults.push(format!("{name} has {setting} on"));
            }
        }
    }
    let accepts = PathBuf::from(format!("/proc/sys/net/ipv4/conf/{}/arp_accept", Device::Bridge.name(vni)));
    if fs::read_to_string(accepts).is_ok_and(|value| value.trim() == "0") {
        faults.push(format!("{} notes no addresses of stations (arp_accept)", Device::Bridge.name(vni)));
    }
    faults
}

/// Returns whether a program has a network's TAP open.
pub fn is_served(vni: u32) -> bool {
    read(Device::Tap, vni, "carrier") == "1"
}

fn path(device: Device, vni: u32, file: &str) -> PathBuf {
    PathBuf::from("/sys/class/net").join(device.name(vni)).join(file)
}

fn read(device: Device, vni: u32, file: &str) -> String {
    fs::read_to_string(path(device, vni, file)).unwrap_or_default().trim().to_owned()
}
