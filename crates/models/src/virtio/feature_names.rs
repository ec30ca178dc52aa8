//! Features by the names that QEMU's options have.

use ringpass_virtio::features::*;

use super::VirtioConfig;

const NAMES: [(&str, u64); 29] = [
    ("csum", CSUM),
    ("guest_csum", GUEST_CSUM),
    ("mtu", MTU),
    ("guest_tso4", GUEST_TSO4),
    ("guest_tso6", GUEST_TSO6),
    ("guest_ecn", GUEST_ECN),
    ("host_tso4", HOST_TSO4),
    ("host_tso6", HOST_TSO6),
    ("host_ecn", HOST_ECN),
    ("mrg_rxbuf", MRG_RXBUF),
    ("status", STATUS),
    ("ctrl_vq", CTRL_VQ),
    ("ctrl_rx", CTRL_RX),
    ("ctrl_vlan", CTRL_VLAN),
    ("ctrl_rx_extra", CTRL_RX_EXTRA),
    ("mq", MQ),
    ("ctrl_mac_addr", CTRL_MAC_ADDR),
    ("notify_on_empty", NOTIFY_ON_EMPTY),
    ("any_layout", ANY_LAYOUT),
    ("indirect_desc", INDIRECT_DESC),
    ("event_idx", EVENT_IDX),
    ("iommu_platform", ACCESS_PLATFORM),
    ("packed", RING_PACKED),
    ("in_order", IN_ORDER),
    ("order_platform", ORDER_PLATFORM),
    ("notification_data", NOTIFICATION_DATA),
    ("notif_config_data", NOTIF_CONFIG_DATA),
    ("queue_reset", RING_RESET),
    ("mac", MAC),
];

/// The usual features, more and less some: `packed+in_order`, `-event_idx-mrg_rxbuf`, `packed-ctrl_vq`. What needs a
/// feature that is taken away goes with it.
pub fn offer(text: &str) -> Result<u64, String> {
    let mut offered = VirtioConfig::USUAL;
    let mut rest = text;
    while !rest.is_empty() {
        let less = rest.starts_with('-');
        let name = rest.strip_prefix(['+', '-']).unwrap_or(rest);
        let (name, behind) = name.split_at(name.find(['+', '-']).unwrap_or(name.len()));
        let Some(&(_, bit)) = NAMES.iter().find(|(known, _)| *known == name) else {
            let names: Vec<&str> = NAMES.iter().map(|(name, _)| *name).collect();
            return Err(format!("'{name}' is no feature; there are {}", names.join(", ")));
        };
        offered = if less { offered & !bit } else { offered | bit };
        rest = behind;
    }
    for (feature, needs) in super::device::NEEDS {
        if offered & needs == 0 {
            offered &= !feature;
        }
    }
    Ok(offered)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn more_and_less() {
        let usual = VirtioConfig::USUAL;
        assert_eq!(offer(""), Ok(usual));
        assert_eq!(offer("packed+in_order"), Ok(usual | RING_PACKED | IN_ORDER));
        assert_eq!(offer("+packed-event_idx-mrg_rxbuf"), Ok((usual | RING_PACKED) & !(EVENT_IDX | MRG_RXBUF)));
        assert_eq!(offer("-csum").unwrap() & (HOST_TSO4 | HOST_TSO6 | HOST_ECN), 0);
        for wrong in ["speed", "-", "packed++in_order", "packed in_order"] {
            assert!(offer(wrong).unwrap_err().contains("is no feature; there are csum"), "{wrong}");
        }
    }
}
