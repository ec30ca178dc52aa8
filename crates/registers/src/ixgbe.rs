//! The Intel 82599 and its successors X540 and X550: registers, bits and descriptors.
//!
//! Names and sections are those of the *Intel 82599 10 GbE Controller Datasheet*, revision 3.4. Registers that are new
//! with the X540 or X550 are not used.

crate::registers! {
    size 0x20000;
    CTRL        0x00000                RW clears 0x04000008  "Device Control, 8.2.3.1.1";
    STATUS      0x00008                RO                    "Device Status, 8.2.3.1.2";
    EICR        0x00800                W1C                   "Extended Interrupt Cause, 8.2.3.5.1";
    EIMS        0x00880                W1S                   "Extended Interrupt Mask Set/Read, 8.2.3.5.3";
    EIMC        0x00888                WO                    "Extended Interrupt Mask Clear, 8.2.3.5.4";
    RDBAL       0x01000 + 0x40 * 64    DMA                   "Receive Descriptor Base Address Low, 8.2.3.8.1";
    RDBAH       0x01004 + 0x40 * 64    DMA                   "Receive Descriptor Base Address High, 8.2.3.8.2";
    RDLEN       0x01008 + 0x40 * 64    RW                    "Receive Descriptor Length, 8.2.3.8.3";
    RDH         0x01010 + 0x40 * 64    RW                    "Receive Descriptor Head, 8.2.3.8.4";
    SRRCTL      0x01014 + 0x40 * 64    RW = 0x00000402       "Split Receive Control, 8.2.3.8.7";
    RDT         0x01018 + 0x40 * 64    RW                    "Receive Descriptor Tail, 8.2.3.8.5";
    RXDCTL      0x01028 + 0x40 * 64    RW                    "Receive Descriptor Control, 8.2.3.8.6";
    QPRC        0x01030 + 0x40 * 16    RC                    "Queue Packets Received Count, 8.2.3.23";
    QBRC_L      0x01034 + 0x40 * 16    RC                    "Queue Bytes Received Count Low, 8.2.3.23";
    QBRC_H      0x01038 + 0x40 * 16    RC                    "Queue Bytes Received Count High, 8.2.3.23";
    QPRDC       0x01430 + 0x40 * 16    RC                    "Queue Packets Received Drop Count, 8.2.3.23.75";
    RQSMR       0x02300 + 4 * 32       RW                    "Receive Queue Statistic Mapping, 8.2.3.23.71";
    RDRXCTL     0x02F00                RW = 0x00108808       "Receive DMA Control, 8.2.3.8.8";
    RXCTRL      0x03000                RW                    "Receive Control, 8.2.3.8.10";
    RXPBSIZE    0x03C00 + 4 * 8        RW = 0x00080000       "Receive Packet Buffer Size, 8.2.3.8.9";
    MPC         0x03FA0 + 4 * 8        RC                    "Missed Packets Count, 8.2.3.23";
    CRCERRS     0x04000                RC                    "CRC Error Count, 8.2.3.23";
    ILLERRC     0x04004                RC                    "Illegal Byte Error Count, 8.2.3.23";
    ERRBC       0x04008                RC                    "Error Byte Count, 8.2.3.23";
    RLEC        0x04040                RC                    "Receive Length Error Count, 8.2.3.23";
    PRC64       0x0405C                RC                    "Packets Received [64 Bytes] Count, 8.2.3.23";
    GPRC        0x04074                RC                    "Good Packets Received Count, 8.2.3.23.26";
    BPRC        0x04078                RC                    "Broadcast Packets Received Count, 8.2.3.23";
    MPRC        0x0407C                RC                    "Multicast Packets Received Count, 8.2.3.23";
    GPTC        0x04080                RC                    "Good Packets Transmitted Count, 8.2.3.23";
    GORCL       0x04088                RC                    "Good Octets Received Count Low, 8.2.3.23";
    GORCH       0x0408C                RC                    "Good Octets Received Count High, 8.2.3.23";
    GOTCL       0x04090                RC                    "Good Octets Transmitted Count Low, 8.2.3.23";
    GOTCH       0x04094                RC                    "Good Octets Transmitted Count High, 8.2.3.23";
    RUC         0x040A4                RC                    "Receive Undersize Count, 8.2.3.23";
    ROC         0x040AC                RC                    "Receive Oversize Count, 8.2.3.23";
    TPR         0x040D0                RC                    "Total Packets Received, 8.2.3.23.59";
    TPT         0x040D4                RC                    "Total Packets Transmitted, 8.2.3.23";
    MPTC        0x040F0                RC                    "Multicast Packets Transmitted Count, 8.2.3.23";
    BPTC        0x040F4                RC                    "Broadcast Packets Transmitted Count, 8.2.3.23";
    HLREG0      0x04240                RW = 0x08012C0B       "MAC Core Control 0, 8.2.3.22.8";
    MAXFRS      0x04268                RW = 0x05EE0000       "Max Frame Size, 8.2.3.22.13";
    AUTOC       0x042A0                RW clears 0x00001000 = 0xC19D8284 "Auto-Negotiation Control, 8.2.3.22.19";
    LINKS       0x042A4                RO                    "Link Status, 8.2.3.22.20";
    RTTDCS      0x04900                RW = 0x00C00000       "DCB Transmit Descriptor Plane Control, 8.2.3.10.2";
    DMATXCTL    0x04A80                RW = 0x81000004       "DMA Tx Control, 8.2.3.9.2";
    RXCSUM      0x05000                RW                    "Receive Checksum Control, 8.2.3.7.5";
    FCTRL       0x05080                RW                    "Filter Control, 8.2.3.7.1";
    VLNCTRL     0x05088                RW = 0x00008100       "VLAN Control, 8.2.3.7.2";
    MCSTCTRL    0x05090                RW                    "Multicast Control, 8.2.3.7.3";
    MTA         0x05200 + 4 * 128      RW                    "Multicast Table Array, 8.2.3.7.7";
    TDBAL       0x06000 + 0x40 * 128   DMA                   "Transmit Descriptor Base Address Low, 8.2.3.9.5";
    TDBAH       0x06004 + 0x40 * 128   DMA                   "Transmit Descriptor Base Address High, 8.2.3.9.6";
    TDLEN       0x06008 + 0x40 * 128   RW                    "Transmit Descriptor Length, 8.2.3.9.7";
    TDH         0x06010 + 0x40 * 128   RW                    "Transmit Descriptor Head, 8.2.3.9.8";
    TDT         0x06018 + 0x40 * 128   RW                    "Transmit Descriptor Tail, 8.2.3.9.9";
    TXDCTL      0x06028 + 0x40 * 128   RW                    "Transmit Descriptor Control, 8.2.3.9.10";
    TDWBAL      0x06038 + 0x40 * 128   DMA                   "Tx Descriptor Completion Write Back Address Low, 8.2.3.9.11";
    TDWBAH      0x0603C + 0x40 * 128   DMA                   "Tx Descriptor Completion Write Back Address High, 8.2.3.9.12";
    DTXMXSZRQ   0x08100                RW = 0x00000010       "DMA Tx TCP Max Allow Size Requests, 8.2.3.9.1";
    TQSM        0x08600 + 4 * 32       RW                    "Transmit Queue Statistic Mapping, 8.2.3.23.73";
    QPTC        0x08680 + 4 * 16       RC                    "Queue Packets Transmitted Count, 8.2.3.23";
    VFTA        0x0A000 + 4 * 128      RW                    "VLAN Filter Table Array, 8.2.3.7.11";
    RAL         0x0A200 + 8 * 128      RW                    "Receive Address Low, 8.2.3.7.8";
    RAH         0x0A204 + 8 * 128      RW                    "Receive Address High, 8.2.3.7.9";
    RETA        0x0EB00 + 4 * 32       RW                    "Redirection Table, 8.2.3.7.15";
    RSSRK       0x0EB80 + 4 * 10       RW                    "RSS Random Key, 8.2.3.7.14";
    MRQC        0x0EC80                RW                    "Multiple Receive Queues Command, 8.2.3.7.12";
    EEC         0x10010                RW = 0x00001310       "EEPROM/Flash Control, 8.2.3.2.1";
    EERD        0x10014                RW                    "EEPROM Read, 8.2.3.2.2";
}

/// Bits of the registers, by register.
pub mod bits {
    macro_rules! bits {
        ($($name:ident $value:literal $doc:literal;)*) => { $(#[doc = $doc] pub const $name: u32 = $value;)* };
    }
    bits! {
        CTRL_LRST          0x0000_0008 "Link reset; clears itself";
        CTRL_RST           0x0400_0000 "Device reset; clears itself";
        EEC_PRES           0x0000_0100 "EEPROM present";
        EEC_AUTO_RD        0x0000_0200 "EEPROM auto-read done";
        EERD_START         0x0000_0001 "Start read";
        EERD_DONE          0x0000_0002 "Read done";
        RDRXCTL_CRCSTRIP   0x0000_0002 "Strip the CRC; to be set as HLREG0.RXCRCSTRP";
        RDRXCTL_DMAIDONE   0x0000_0008 "DMA initialisation done";
        RDRXCTL_RSCFRSTSIZE 0x003E_0000 "To be written as zero";
        RDRXCTL_RSCACKC    0x0200_0000 "To be set by software";
        RDRXCTL_FCOE_WRFIX 0x0400_0000 "To be set by software";
        RXCTRL_RXEN        0x0000_0001 "Receive enable";
        HLREG0_TXCRCEN     0x0000_0001 "Append the CRC to sent frames";
        HLREG0_RXCRCSTRP   0x0000_0002 "Strip the CRC from received frames";
        HLREG0_JUMBOEN     0x0000_0004 "Receive frames of up to MAXFRS bytes";
        HLREG0_TXPADEN     0x0000_0400 "Pad sent frames to 64 bytes";
        HLREG0_LPBK        0x0000_8000 "Loopback";
        AUTOC_LMS_MASK     0x0000_E000 "Link mode select";
        AUTOC_LMS_10G_SERIAL 0x0000_6000 "10G serial link";
        AUTOC_AN_RESTART   0x0000_1000 "Restart auto-negotiation; clears itself";
        LINKS_UP           0x4000_0000 "Link up";
        LINKS_SPEED_MASK   0x3000_0000 "Speed";
        LINKS_SPEED_10G    0x3000_0000 "10 Gbit/s";
        LINKS_SPEED_1G     0x2000_0000 "1 Gbit/s";
        LINKS_SPEED_100M   0x1000_0000 "100 Mbit/s";
        FCTRL_MPE          0x0000_0100 "Multicast promiscuous";
        FCTRL_UPE          0x0000_0200 "Unicast promiscuous";
        FCTRL_BAM          0x0000_0400 "Accept broadcast";
        MCSTCTRL_MFE       0x0000_0004 "Multicast filter enable";
        RAH_AV             0x8000_0000 "Address valid";
        RXDCTL_ENABLE      0x0200_0000 "Queue enable; reads back when done";
        SRRCTL_BSIZEPACKET 0x0000_001F "Size of a buffer, in KiB";
        SRRCTL_DESCTYPE_ADV_ONEBUF 0x0200_0000 "Advanced descriptor, one buffer";
        SRRCTL_DROP_EN     0x1000_0000 "Drop when no descriptor is left";
        TXDCTL_ENABLE      0x0200_0000 "Queue enable; reads back when done";
        DMATXCTL_TE        0x0000_0001 "Transmit enable";
        RTTDCS_ARBDIS      0x0000_0040 "Arbiter disable";
        TDWBAL_HEAD_WB_EN  0x0000_0001 "Head write-back enable";
        MRQC_MRQE_RSS      0x0000_0001 "RSS only";
        MRQC_RSS_TCP_IPV4  0x0001_0000 "Hash addresses and ports of TCP over IPv4";
        MRQC_RSS_IPV4      0x0002_0000 "Hash addresses of IPv4";
        MRQC_RSS_IPV6      0x0010_0000 "Hash addresses of IPv6";
        MRQC_RSS_TCP_IPV6  0x0020_0000 "Hash addresses and ports of TCP over IPv6";
        MRQC_RSS_UDP_IPV4  0x0040_0000 "Hash addresses and ports of UDP over IPv4";
        MRQC_RSS_UDP_IPV6  0x0080_0000 "Hash addresses and ports of UDP over IPv6";
    }
}

/// Fields of the second half of a descriptor, as a little-endian 64-bit number. The first half is the address of the
/// buffer in a read format, and other things in a write-back format.
pub mod descriptor {
    /// Rx write-back (7.1.6.2): the card is done with the descriptor.
    pub const RX_DD: u64 = 1 << 0;
    /// Rx write-back: the frame ends here.
    pub const RX_EOP: u64 = 1 << 1;
    /// Rx write-back: errors of the MAC (RXE: CRC, symbol or length), bit 29 of the status and error word.
    pub const RX_RXE: u64 = 1 << 29;
    /// Rx write-back: length of the data in this buffer, 16 bits.
    pub const RX_LENGTH_SHIFT: u32 = 32;
    /// Tx data descriptor (7.2.3.2.4): bytes in this buffer are the lowest 16 bits; type "advanced data".
    pub const TX_DTYP_DATA: u64 = 0b0011 << 20;
    /// Tx: the frame ends here.
    pub const TX_EOP: u64 = 1 << 24;
    /// Tx: insert the frame's CRC.
    pub const TX_IFCS: u64 = 1 << 25;
    /// Tx: report status (DD).
    pub const TX_RS: u64 = 1 << 27;
    /// Tx: advanced descriptor.
    pub const TX_DEXT: u64 = 1 << 29;
    /// Tx write-back (7.2.3.2.5): the card is done with the descriptor and those before it.
    pub const TX_DD: u64 = 1 << 32;
    /// Tx: length of the whole frame, 18 bits.
    pub const TX_PAYLEN_SHIFT: u32 = 46;
}

/// Intel's PCI vendor id.
pub const VENDOR: u16 = 0x8086;

/// The family's members, each with the PCI device ids of its cards. Virtual functions have other registers.
pub const MODELS: &[(&str, &[u16])] = &[
    ("82599", &[0x10f7, 0x10f8, 0x10f9, 0x10fb, 0x10fc, 0x1507, 0x1514, 0x1517, 0x151c]),
    ("82599", &[0x1529, 0x152a, 0x154a, 0x154d, 0x1557, 0x1558]),
    ("X540", &[0x1528, 0x1560]),
    ("X550", &[0x1563, 0x15d1]),
];
