//! The Intel 82576: registers, bits, and the descriptor bits that differ from the 82599's.
//!
//! Names and sections are those of the *Intel 82576EB Gigabit Ethernet Controller Datasheet*. Where a section's
//! number could not be verified, its group is given (8.8 interrupts, 8.10 receive, 8.12 transmit, 8.19
//! statistics), or none. Only registers that the driver uses are listed.

crate::registers! {
    size 0x20000;
    CTRL        0x00000            RW clears 0x84000000    "Device Control, 8.2.1";
    STATUS      0x00008            RO                      "Device Status, 8.2.2";
    EECD        0x00010            RW                      "EEPROM/Flash Control and Data, 8.4.1";
    CTRL_EXT    0x00018            RW                      "Extended Device Control, 8.2.3";
    MDIC        0x00020            RW                      "MDI Control, 8.2.4";
    RCTL        0x00100            RW                      "Receive Control, 8.10.1";
    TCTL        0x00400            RW                      "Transmit Control, 8.12";
    IMC         0x0150C            WO                      "Interrupt Mask Clear, 8.8.10";
    GPIE        0x01514            RW                      "General Purpose Interrupt Enable, 8.8";
    EIMS        0x01524            W1S                     "Extended Interrupt Mask Set/Read, 8.8.3";
    EIMC        0x01528            WO                      "Extended Interrupt Mask Clear, 8.8.4";
    EIAC        0x0152C            RW                      "Extended Interrupt Auto Clear, 8.8.5";
    EIAM        0x01530            RW                      "Extended Interrupt Auto Mask Enable, 8.8.6";
    EICR        0x01580            W1C                     "Extended Interrupt Cause, 8.8.1";
    EITR        0x01680 + 4 * 25   RW                      "Interrupt Throttle, 8.8";
    IVAR        0x01700 + 4 * 8    RW                      "Interrupt Vector Allocation, 8.8.13";
    CRCERRS     0x04000            RC                      "CRC Error Count, 8.19";
    ALGNERRC    0x04004            RC                      "Alignment Error Count, 8.19";
    SYMERRS     0x04008            RC                      "Symbol Error Count, 8.19";
    RXERRC      0x0400C            RC                      "RX Error Count, 8.19";
    MPC         0x04010            RC                      "Missed Packets Count, 8.19";
    RLEC        0x04040            RC                      "Receive Length Error Count, 8.19";
    XONRXC      0x04048            RC                      "XON Received Count, 8.19";
    XONTXC      0x0404C            RC                      "XON Transmitted Count, 8.19";
    XOFFRXC     0x04050            RC                      "XOFF Received Count, 8.19";
    XOFFTXC     0x04054            RC                      "XOFF Transmitted Count, 8.19";
    GPRC        0x04074            RC                      "Good Packets Received Count, 8.19";
    BPRC        0x04078            RC                      "Broadcast Packets Received Count, 8.19";
    MPRC        0x0407C            RC                      "Multicast Packets Received Count, 8.19";
    GPTC        0x04080            RC                      "Good Packets Transmitted Count, 8.19";
    GORCL       0x04088            RC                      "Good Octets Received Count Low, 8.19";
    GORCH       0x0408C            RC                      "Good Octets Received Count High, 8.19";
    GOTCL       0x04090            RC                      "Good Octets Transmitted Count Low, 8.19";
    GOTCH       0x04094            RC                      "Good Octets Transmitted Count High, 8.19";
    RNBC        0x040A0            RC                      "Receive No Buffers Count, 8.19";
    RUC         0x040A4            RC                      "Receive Undersize Count, 8.19";
    RFC         0x040A8            RC                      "Receive Fragment Count, 8.19";
    ROC         0x040AC            RC                      "Receive Oversize Count, 8.19.37";
    RJC         0x040B0            RC                      "Receive Jabber Count, 8.19";
    MPTC        0x040F0            RC                      "Multicast Packets Transmitted Count, 8.19";
    BPTC        0x040F4            RC                      "Broadcast Packets Transmitted Count, 8.19";
    PCS_LCTL    0x04208            RW clears 0x00020000    "PCS Link Control";
    RXCSUM      0x05000            RW = 0x00000300         "Receive Checksum Control, 8.10";
    RLPML       0x05004            RW bits 0x00003FFF = 0x00002600 "Receive Long Packet Maximum Length, 8.10";
    RAL         0x05400 + 8 * 16   RW                      "Receive Address Low, 8.10";
    RAH         0x05404 + 8 * 16   RW                      "Receive Address High, 8.10";
    MRQC        0x05818            RW                      "Multiple Receive Queues Command, 8.10";
    SWSM        0x05B50            RW                      "Software Semaphore, 8.7.1";
    SW_FW_SYNC  0x05B5C            RW                      "Software-Firmware Synchronization, 8.7.3";
    RETA        0x05C00 + 4 * 32   RW                      "Redirection Table, 8.10";
    RSSRK       0x05C80 + 4 * 10   RW                      "RSS Random Key, 8.10";
    RDBAL       0x0C000 + 0x40 * 16 DMA bits 0xFFFFFF80    "Receive Descriptor Base Address Low, 8.10";
    RDBAH       0x0C004 + 0x40 * 16 DMA                    "Receive Descriptor Base Address High, 8.10";
    RDLEN       0x0C008 + 0x40 * 16 RW bits 0x000FFF80     "Receive Descriptor Ring Length, 8.10";
    SRRCTL      0x0C00C + 0x40 * 16 RW                     "Split and Replication Receive Control, 8.10.2";
    RDH         0x0C010 + 0x40 * 16 RW                     "Receive Descriptor Head, 8.10";
    RDT         0x0C018 + 0x40 * 16 RW                     "Receive Descriptor Tail, 8.10";
    RXDCTL      0x0C028 + 0x40 * 16 RW                     "Receive Descriptor Control, 8.10.10";
    RQDPC       0x0C030 + 0x40 * 16 RC                     "Receive Queue Drop Packet Count, 8.10";
    TDBAL       0x0E000 + 0x40 * 16 DMA bits 0xFFFFFF80    "Transmit Descriptor Base Address Low, 8.12";
    TDBAH       0x0E004 + 0x40 * 16 DMA                    "Transmit Descriptor Base Address High, 8.12";
    TDLEN       0x0E008 + 0x40 * 16 RW bits 0x000FFF80     "Transmit Descriptor Ring Length, 8.12";
    TDH         0x0E010 + 0x40 * 16 RW                     "Transmit Descriptor Head, 8.12";
    TDT         0x0E018 + 0x40 * 16 RW                     "Transmit Descriptor Tail, 8.12";
    TXDCTL      0x0E028 + 0x40 * 16 RW                     "Transmit Descriptor Control, 8.12.13";
    TDWBAL      0x0E038 + 0x40 * 16 DMA                    "Transmit Descriptor Write-back Address Low, 8.12";
    TDWBAH      0x0E03C + 0x40 * 16 DMA                    "Transmit Descriptor Write-back Address High, 8.12";
}

/// Bits of the registers, grouped by register.
pub mod bits {
    macro_rules! bits {
        ($($name:ident $value:literal $doc:literal;)*) => { $(#[doc = $doc] pub const $name: u32 = $value;)* };
    }
    bits! {
        CTRL_GIO_MASTER_DISABLE 0x0000_0004 "Start no more PCIe requests";
        CTRL_SLU           0x0000_0040 "Set link up";
        CTRL_FRCSPD        0x0000_0800 "Force speed";
        CTRL_FRCDPX        0x0000_1000 "Force duplex";
        CTRL_RST           0x0400_0000 "Device reset; clears itself";
        CTRL_VME           0x4000_0000 "VLAN mode: strip tags into the descriptor, insert those that descriptors ask for";
        STATUS_LU          0x0000_0002 "Link up";
        STATUS_LAN_ID      0x0000_000C "Which of the card's ports this is";
        STATUS_SPEED_MASK  0x0000_00C0 "Speed";
        STATUS_SPEED_10    0x0000_0000 "10 Mbit/s";
        STATUS_SPEED_100   0x0000_0040 "100 Mbit/s";
        STATUS_GIO_MASTER_ENABLE 0x0008_0000 "PCIe requests are outstanding, or may start";
        EECD_AUTO_RD       0x0000_0200 "EEPROM auto-read done";
        CTRL_EXT_LINK_MODE_MASK 0x00C0_0000 "Link mode, from the EEPROM; zero: the internal copper PHY";
        CTRL_EXT_DRV_LOAD  0x1000_0000 "Tells the firmware that a driver is loaded";
        MDIC_PHY_1         0x0020_0000 "PHY address 1, the internal one";
        MDIC_WRITE         0x0400_0000 "Write operation";
        MDIC_READ          0x0800_0000 "Read operation";
        MDIC_R             0x1000_0000 "Ready: the operation has ended";
        MDIC_E             0x4000_0000 "The operation failed";
        RCTL_RXEN          0x0000_0002 "Receive enable";
        RCTL_UPE           0x0000_0008 "Unicast promiscuous";
        RCTL_MPE           0x0000_0010 "Multicast promiscuous";
        RCTL_LPE           0x0000_0020 "Receive frames of up to RLPML bytes";
        RCTL_BAM           0x0000_8000 "Accept broadcast";
        RCTL_SECRC         0x0400_0000 "Strip the CRC from received frames";
        TCTL_EN            0x0000_0002 "Transmit enable";
        TCTL_PSP           0x0000_0008 "Pad sent frames to 64 bytes";
        GPIE_MSIX_MODE     0x0000_0010 "One vector for each cause, by MSI-X (Multiple_MSIX)";
        GPIE_EIAME         0x4000_0000 "A message masks its causes, as EIAM selects";
        GPIE_PBA_SUPPORT   0x8000_0000 "Pending bits, to be set with MSI-X";
        IVAR_VALID         0x0000_0080 "The lowest of four entries is valid";
        PCS_LCTL_AN_ENABLE 0x0001_0000 "Auto-negotiation";
        PCS_LCTL_AN_RESTART 0x0002_0000 "Restart auto-negotiation; clears itself";
        RXCSUM_IPOFLD      0x0000_0100 "Check the checksum of IPv4 headers";
        RXCSUM_TUOFLD      0x0000_0200 "Check the checksums of TCP and UDP";
        RXCSUM_PCSD        0x0000_2000 "The descriptor has the RSS hash, not a checksum";
        MRQC_RSS           0x0000_0002 "RSS over 16 queues";
        MRQC_RSS_TCP_IPV4  0x0001_0000 "Hash addresses and ports of TCP over IPv4";
        MRQC_RSS_IPV4      0x0002_0000 "Hash addresses of IPv4";
        MRQC_RSS_IPV6      0x0010_0000 "Hash addresses of IPv6";
        MRQC_RSS_TCP_IPV6  0x0020_0000 "Hash addresses and ports of TCP over IPv6";
        MRQC_RSS_UDP_IPV4  0x0040_0000 "Hash addresses and ports of UDP over IPv4";
        MRQC_RSS_UDP_IPV6  0x0080_0000 "Hash addresses and ports of UDP over IPv6";
        SWSM_SMBI          0x0000_0001 "Some software has the semaphore; a read sets it";
        SWSM_SWESMBI       0x0000_0002 "Software has it, not the firmware";
        SW_FW_SYNC_SW_PHY_0 0x0000_0002 "Software uses the PHY of port 0; that of port 1 is the next bit, the firmware's are 16 bits above";
        SRRCTL_BSIZEPACKET 0x0000_007F "Size of a buffer, in KiB";
        SRRCTL_DESCTYPE_ADV_ONEBUF 0x0200_0000 "Advanced descriptor, one buffer";
        SRRCTL_DROP_EN     0x8000_0000 "Drop when no descriptor is left";
        RXDCTL_ENABLE      0x0200_0000 "Queue enable; reads back when done";
        TXDCTL_ENABLE      0x0200_0000 "Queue enable; reads back when done";
    }
}

/// Descriptor bits that differ from the 82599's ([`crate::registers::ixgbe::descriptor`]): the error bits of an Rx write-back.
pub mod descriptor {
    /// Rx write-back (7.1.5.2): the TCP or UDP checksum is wrong.
    pub const RX_L4E: u64 = 1 << 29;
    /// Rx write-back: the IPv4 header checksum is wrong.
    pub const RX_IPE: u64 = 1 << 30;
    /// Rx write-back: error found by the MAC.
    pub const RX_RXE: u64 = 1 << 31;
}

/// Members of the family, each with the PCI device ids of its cards: copper, fiber and SerDes, with two and
/// four ports. Virtual functions have other registers and are not listed.
pub const MODELS: &[(&str, &[u16])] = &[("82576", &[0x10c9, 0x10e6, 0x10e7, 0x10e8, 0x1526, 0x150a, 0x1518, 0x150d])];

/// Number of queue pairs of a card.
pub const QUEUES: usize = 16;

/// Intel's PCI vendor id.
pub const VENDOR: u16 = 0x8086;
