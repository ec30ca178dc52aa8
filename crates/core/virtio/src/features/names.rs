//! Features by the names of QEMU's options.

use super::*;

const NAMES: [(&str, u64); 30] = [
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
    ("guest_announce", GUEST_ANNOUNCE),
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

/// Features that depend on others, of which one is enough (5.1.3.1).
pub const DEPENDENCIES: [(u64, u64); 12] = [
    (GUEST_TSO4, GUEST_CSUM),
    (GUEST_TSO6, GUEST_CSUM),
    (GUEST_UFO, GUEST_CSUM),
    (GUEST_ECN, GUEST_TSO4 | GUEST_TSO6),
    (HOST_TSO4, CSUM),
    (HOST_TSO6, CSUM),
    (HOST_ECN, HOST_TSO4 | HOST_TSO6),
    (CTRL_RX, CTRL_VQ),
    (CTRL_VLAN, CTRL_VQ),
    (GUEST_ANNOUNCE, CTRL_VQ),
    (MQ, CTRL_VQ),
    (CTRL_MAC_ADDR, CTRL_VQ),
];

/// Returns the `usual` features with some added or removed by `text`, for example `packed+in_order`,
/// `-event_idx-mrg_rxbuf`, `packed-ctrl_vq`. Features that depend on a removed one are removed too. Fails for
/// an unknown name.
pub fn offer(usual: u64, text: &str) -> Result<u64, String> {
    let mut offered = usual;
    let mut rest = text;
    while !rest.is_empty() {
        let less = rest.starts_with('-');
        let name = rest.strip_prefix(['+', '-']).unwrap_or(rest);
        let (name, behind) = name.split_at(name.find(['+', '-']).unwrap_or(name.len()));
        let Some(&(_, bit)) = NAMES.iter().find(|(known, _)| *known == name) else {
            let names: Vec<&str> = NAMES.iter().map(|(name, _)| *name).collect();
            return Err(format!("'{name}' is not a feature; there are {}", names.join(", ")));
        };
        offered = if less { offered & !bit } else { offered | bit };
        rest = behind;
    }
    for (feature, needs) in DEPENDENCIES {
        if offered & needs == 0 {
            offered &= !feature;
        }
    }
    Ok(offered)
}

/// Lists features by name, for people; those without a name by bit number.
pub fn describe(features: u64) -> String {
    let named = NAMES.iter().filter(|&(_, bit)| features & bit != 0).map(|(name, _)| (*name).to_owned());
    let rest = NAMES.iter().fold(features, |rest, (_, bit)| rest & !bit);
    let bits = (0..u64::BITS).filter(|bit| rest >> bit & 1 != 0).map(|bit| match 1 << bit {
        VERSION_1 => "version_1".to_owned(),
        _ => format!("feature {bit}"),
    });
    named.chain(bits).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn more_and_less() {
        let usual = VERSION_1 | CSUM | HOST_TSO4 | HOST_TSO6 | HOST_ECN | MRG_RXBUF | EVENT_IDX;
        assert_eq!(offer(usual, ""), Ok(usual));
        assert_eq!(offer(usual, "packed+in_order"), Ok(usual | RING_PACKED | IN_ORDER));
        let less = (usual | RING_PACKED) & !(EVENT_IDX | MRG_RXBUF);
        assert_eq!(offer(usual, "+packed-event_idx-mrg_rxbuf"), Ok(less));
        assert_eq!(offer(usual, "-csum"), Ok(VERSION_1 | MRG_RXBUF | EVENT_IDX));
        for wrong in ["speed", "-", "packed++in_order", "packed in_order"] {
            assert!(offer(usual, wrong).unwrap_err().contains("is not a feature; there are csum"), "{wrong}");
        }
    }
}
