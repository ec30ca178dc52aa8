//! The Intel 82599 and its successors X540 and X550: registers, bits and descriptors.
//!
//! Names and sections are those of the *Intel 82599 10 GbE Controller Datasheet*, revision 3.4. Registers that
//! are new in the X540 or X550 are not used.

crate::registers! {
    size 0x20000;
    CTRL        0x00000                RW bits 0x0400000C clears 0x04000008  "Device Control, 8.2.3.1.1";
    STATUS      0x00008                RO                    "Device Status, 8.2.3.1.2";
    CTRL_EXT    0x00018                RW bits 0x14030000    "Extended Device Control, 8.2.3.1.3";
    ESDP        0x00020                RW                    "Extended SDP Control, 8.2.3.1.4";
    I2CCTL      0x00028                RW                    "I2C Control, 8.2.3.1.5";
    FRTIMER     0x00048                RO                    "Free Running Timer, 8.2.3.12.3";
    TCPTIMER    0x0004C                RW                    "TCP Timer, 8.2.3.12.2";
    LEDCTL      0x00200                RW = 0x00002204       "LED Control, 8.2.3.1.6";
    PFVFLREC    0x00700 + 4 * 2        W1C                   "VFLR Events Clear, 8.2.3.27";
    PFMBICR     0x00710 + 4 * 4        W1C                   "PF Mailbox Interrupt Causes, 8.2.3.27";
    PFMBIMR     0x00720 + 4 * 2        RW                    "PF Mailbox Interrupt Mask, 8.2.3.27";
    EICR        0x00800                W1C                   "Extended Interrupt Cause, 8.2.3.5.1";
    EICS        0x00808                WO                    "Extended Interrupt Cause Set, 8.2.3.5.2";
    EIAC        0x00810                RW bits 0x4000FFFF    "Extended Interrupt Auto Clear, 8.2.3.5.5";
    EITR        0x00820 + 4 * 24       RW bits 0x001F8FF8    "Extended Interrupt Throttle, 8.2.3.5.12";
    EIMS        0x00880                W1S                   "Extended Interrupt Mask Set/Read, 8.2.3.5.3";
    EIMC        0x00888                WO                    "Extended Interrupt Mask Clear, 8.2.3.5.4";
    EIAM        0x00890                RW bits 0x7FFFFFFF    "Extended Interrupt Auto Mask Enable, 8.2.3.5.6";
    EITRSEL     0x00894                RW                    "MSI-X to EITR Select, 8.2.3.5.13";
    GPIE        0x00898                RW bits 0xC000FFFF    "General Purpose Interrupt Enable, 8.2.3.5.18";
    IVAR        0x00900 + 4 * 64       RW bits 0xBFBFBFBF    "Interrupt Vector Allocation, 8.2.3.5.16";
    IVAR_MISC   0x00A00                RW bits 0x0000BFBF    "Miscellaneous Interrupt Vector Allocation, 8.2.3.5.17";
    EICS_EX     0x00A90 + 4 * 2        WO                    "Extended Interrupt Cause Set, vectors 0 to 63, 8.2.3.5.7";
    EIMS_EX     0x00AA0 + 4 * 2        W1S                   "Extended Interrupt Mask Set/Read, vectors 0 to 63, 8.2.3.5.8";
    EIMC_EX     0x00AB0 + 4 * 2        WO                    "Extended Interrupt Mask Clear, vectors 0 to 63, 8.2.3.5.9";
    EIAM_EX     0x00AD0 + 4 * 2        RW                    "Extended Interrupt Auto Mask Enable, vectors 0 to 63, 8.2.3.5.10";
    // ANCHOR: rx_ring
    RDBAL       0x01000 + 0x40 * 64, 0x0D000 DMA bits 0xFFFFFF80                   "Receive Descriptor Base Address Low, 8.2.3.8.1";
    RDBAH       0x01004 + 0x40 * 64, 0x0D004 DMA                   "Receive Descriptor Base Address High, 8.2.3.8.2";
    RDLEN       0x01008 + 0x40 * 64, 0x0D008 RW bits 0x000FFF80                    "Receive Descriptor Length, 8.2.3.8.3";
    DCA_RXCTRL  0x0100C + 0x40 * 64, 0x0D00C RW = 0x0000A200 "Rx DCA Control, 8.2.3.11.1";
    RDH         0x01010 + 0x40 * 64, 0x0D010 RW                    "Receive Descriptor Head, 8.2.3.8.4";
    SRRCTL      0x01014 + 0x40 * 64, 0x0D014 RW bits 0x1FC03F1F = 0x00000402       "Split Receive Control, 8.2.3.8.7";
    RDT         0x01018 + 0x40 * 64, 0x0D018 RW                    "Receive Descriptor Tail, 8.2.3.8.5";
    // ANCHOR_END: rx_ring
    RXDCTL      0x01028 + 0x40 * 64, 0x0D028 RW bits 0x4200FFFF                    "Receive Descriptor Control, 8.2.3.8.6";
    RSCCTL      0x0102C + 0x40 * 64, 0x0D02C RW                    "RSC Control, 8.2.3.8";
    QPRC        0x01030 + 0x40 * 16    RC                    "Queue Packets Received Count, 8.2.3.23";
    QBRC_L      0x01034 + 0x40 * 16    RC                    "Queue Bytes Received Count Low, 8.2.3.23";
    QBRC_H      0x01038 + 0x40 * 16    RC                    "Queue Bytes Received Count High, 8.2.3.23";
    QPRDC       0x01430 + 0x40 * 16    RC                    "Queue Packets Received Drop Count, 8.2.3.23.75";
    RTRPT4C     0x02140 + 4 * 8        RW                    "DCB Receive Packet Plane T4 Config, 8.2.3.10.8";
    RTRPT4S     0x02160 + 4 * 8        RO                    "DCB Receive Packet Plane T4 Status, 8.2.3.10.9";
    RQSMR       0x02300 + 4 * 32       RW                    "Receive Queue Statistic Mapping, 8.2.3.23.71";
    FCOERPDC    0x0241C                RC                    "FCoE Rx Packets Dropped Count, 8.2.3.23";
    FCLAST      0x02424                RC                    "FC Last Error Count, 8.2.3.23";
    FCOEPRC     0x02428                RC                    "FCoE Packets Received Count, 8.2.3.23";
    FCOEDWRC    0x0242C                RC                    "FCOE DWord Received Count, 8.2.3.23";
    RTRPCS      0x02430                RW                    "DCB Receive Packet Plane Control and Status, 8.2.3.10.1";
    RDRXCTL     0x02F00                RW = 0x00108808       "Receive DMA Control, 8.2.3.8.8";
    PFQDE       0x02F04                RW                    "PF PCIe Queue Drop Enable, 8.2.3.8";
    DRECCCTL    0x02F08                RW                    "Receive DMA ECC Control, 8.2.3.8.8";
    RXCTRL      0x03000                RW bits 0x00000001                    "Receive Control, 8.2.3.8.10";
    PFCTOP      0x03008                RW                    "Priority Flow Control Type Opcode, 8.2.3.3.1";
    RTRUP2TC    0x03020                RW                    "DCB Receive User Priority to Traffic Class, 8.2.3.10.4";
    RSCDBU      0x03028                RW bits 0x000000FF    "RSC Data Buffer Control, 8.2.3.8.12";
    FCTTV       0x03200 + 4 * 4        RW                    "Flow Control Transmit Timer Value, 8.2.3.3.2";
    FCRTL       0x03220 + 4 * 8        RW bits 0x8007FFF0    "Flow Control Receive Threshold Low, 8.2.3.3.3";
    PXON2OFFCNT 0x03240 + 4 * 8        RC                    "Priority XON to XOFF Count, 8.2.3.23";
    FCRTH       0x03260 + 4 * 8        RW bits 0x8007FFF0    "Flow Control Receive Threshold High, 8.2.3.3.4";
    FCRTV       0x032A0                RW bits 0x0000FFFF    "Flow Control Refresh Threshold, 8.2.3.3.5";
    RXPBSIZE    0x03C00 + 4 * 8        RW bits 0x000FFC00 = 0x00080000       "Receive Packet Buffer Size, 8.2.3.8.9";
    FCCFG       0x03D00                RW bits 0x00000018    "Flow Control Configuration, 8.2.3.3.7";
    PXONTXC     0x03F00 + 4 * 8        RC                    "Priority XON Transmitted Count, 8.2.3.23";
    PXOFFTXC    0x03F20 + 4 * 8        RC                    "Priority XOFF Transmitted Count, 8.2.3.23";
    LXONTXC     0x03F60                RC                    "Link XON Transmitted Count, 8.2.3.23";
    LXOFFTXC    0x03F68                RC                    "Link XOFF Transmitted Count, 8.2.3.23";
    MPC         0x03FA0 + 4 * 8        RC                    "Missed Packets Count, 8.2.3.23";
    CRCERRS     0x04000                RC                    "CRC Error Count, 8.2.3.23";
    ILLERRC     0x04004                RC                    "Illegal Byte Error Count, 8.2.3.23";
    ERRBC       0x04008                RC                    "Error Byte Count, 8.2.3.23";
    MSPDC       0x04010                RC                    "MAC Short Packet Discard Count, 8.2.3.23";
    MLFC        0x04034                RC                    "MAC Local Fault Count, 8.2.3.23";
    MRFC        0x04038                RC                    "MAC Remote Fault Count, 8.2.3.23";
    RLEC        0x04040                RC                    "Receive Length Error Count, 8.2.3.23";
    PRC64       0x0405C                RC                    "Packets Received [64 Bytes] Count, 8.2.3.23";
    PRC127      0x04060                RC                    "Packets Received [65-127 Bytes] Count, 8.2.3.23";
    PRC255      0x04064                RC                    "Packets Received [128-255 Bytes] Count, 8.2.3.23";
    PRC511      0x04068                RC                    "Packets Received [256-511 Bytes] Count, 8.2.3.23";
    PRC1023     0x0406C                RC                    "Packets Received [512-1023 Bytes] Count, 8.2.3.23";
    PRC1522     0x04070                RC                    "Packets Received [1024 to Max Bytes] Count, 8.2.3.23";
    GPRC        0x04074                RC                    "Good Packets Received Count, 8.2.3.23.26";
    BPRC        0x04078                RC                    "Broadcast Packets Received Count, 8.2.3.23";
    MPRC        0x0407C                RC                    "Multicast Packets Received Count, 8.2.3.23";
    GPTC        0x04080                RC                    "Good Packets Transmitted Count, 8.2.3.23";
    GORCL       0x04088                RC                    "Good Octets Received Count Low, 8.2.3.23";
    GORCH       0x0408C                RC                    "Good Octets Received Count High, 8.2.3.23";
    GOTCL       0x04090                RC                    "Good Octets Transmitted Count Low, 8.2.3.23";
    GOTCH       0x04094                RC                    "Good Octets Transmitted Count High, 8.2.3.23";
    RUC         0x040A4                RC                    "Receive Undersize Count, 8.2.3.23";
    RFC         0x040A8                RC                    "Receive Fragment Count, 8.2.3.23";
    ROC         0x040AC                RC                    "Receive Oversize Count, 8.2.3.23";
    RJC         0x040B0                RC                    "Receive Jabber Count, 8.2.3.23";
    MNGPRC      0x040B4                RC                    "Management Packets Received Count, 8.2.3.23";
    MNGPDC      0x040B8                RC                    "Management Packets Dropped Count, 8.2.3.23";
    TORL        0x040C0                RC                    "Total Octets Received Low, 8.2.3.23";
    TORH        0x040C4                RC                    "Total Octets Received High, 8.2.3.23";
    TPR         0x040D0                RC                    "Total Packets Received, 8.2.3.23.59";
    TPT         0x040D4                RC                    "Total Packets Transmitted, 8.2.3.23";
    PTC64       0x040D8                RC                    "Packets Transmitted (64 Bytes) Count, 8.2.3.23";
    PTC127      0x040DC                RC                    "Packets Transmitted [65-127 Bytes] Count, 8.2.3.23";
    PTC255      0x040E0                RC                    "Packets Transmitted [128-255 Bytes] Count, 8.2.3.23";
    PTC511      0x040E4                RC                    "Packets Transmitted [256-511 Bytes] Count, 8.2.3.23";
    PTC1023     0x040E8                RC                    "Packets Transmitted [512-1023 Bytes] Count, 8.2.3.23";
    PTC1522     0x040EC                RC                    "Packets Transmitted [Greater than 1024 Bytes] Count, 8.2.3.23";
    MPTC        0x040F0                RC                    "Multicast Packets Transmitted Count, 8.2.3.23";
    BPTC        0x040F4                RC                    "Broadcast Packets Transmitted Count, 8.2.3.23";
    XEC         0x04120                RC                    "XSUM Error Count, 8.2.3.23";
    PXONRXCNT   0x04140 + 4 * 8        RC                    "Priority XON Received Count, 8.2.3.23";
    PXOFFRXCNT  0x04160 + 4 * 8        RC                    "Priority XOFF Received Count, 8.2.3.23";
    LXONRXCNT   0x041A4                RC                    "Link XON Received Count, 8.2.3.23";
    LXOFFRXCNT  0x041A8                RC                    "Link XOFF Received Count, 8.2.3.23";
    RXNFGPC     0x041B0                RC                    "Good Rx Non-Filtered Packet Counter, 8.2.3.23";
    RXNFGBCL    0x041B4                RC                    "Good Rx Non-Filter Byte Counter Low, 8.2.3.23";
    RXNFGBCH    0x041B8                RC                    "Good Rx Non-Filter Byte Counter High, 8.2.3.23";
    PCS1GCFIG   0x04200                RW = 0x00000008       "PCS_1G Global Config 1, 8.2.3.22.1";
    PCS1GLCTL   0x04208                RW = 0x02000000       "PCS_1G Link Control, 8.2.3.22.2";
    PCS1GLSTA   0x0420C                RO                    "PCS_1G Link Status, 8.2.3.22.3";
    PCS1GANA    0x04218                RW = 0x000000A0       "PCS_1 Gb/s Auto-Negotiation Advanced, 8.2.3.22.4";
    PCS1GANLP   0x0421C                RO                    "PCS_1GAN LP Ability, 8.2.3.22.5";
    PCS1GANNP   0x04220                RW                    "PCS_1G Auto-Negotiation Next Page Transmit, 8.2.3.22.6";
    PCS1GANLPNP 0x04224                RO                    "PCS_1G Auto-Negotiation LP's Next Page, 8.2.3.22.7";
    HLREG0      0x04240                RW = 0x08012C0B       "MAC Core Control 0, 8.2.3.22.8";
    HLREG1      0x04244                RO                    "MAC Core Status 1, 8.2.3.22.9";
    PAP         0x04248                RW = 0x0000FFFF       "Pause and Pace, 8.2.3.22.10";
    MSCA        0x0425C                RW                    "MDI Single Command and Address, 8.2.3.22.11";
    MSRWD       0x04260                RW                    "MDI Single Read and Write Data, 8.2.3.22.12";
    MAXFRS      0x04268                RW bits 0xFFFF0000 = 0x05EE0000       "Max Frame Size, 8.2.3.22.13";
    PCSS1       0x04288                RO                    "XGXS Status 1, 8.2.3.22.14";
    PCSS2       0x0428C                RO                    "XGXS Status 2, 8.2.3.22.15";
    XPCSS       0x04290                RO                    "10GBASE-X PCS Status, 8.2.3.22.16";
    MFLCN       0x04294                RW bits 0x0000000F    "MAC Flow Control, 8.2.3.22.34";
    SERDESC     0x04298                RW                    "SerDes Interface Control, 8.2.3.22.17";
    MACS        0x0429C                RW                    "FIFO Status/CNTL Report, 8.2.3.22.18";
    AUTOC       0x042A0                RW clears 0x00001000 = 0xC19D8284 "Auto-Negotiation Control, 8.2.3.22.19";
    LINKS       0x042A4                RO                    "Link Status, 8.2.3.22.20";
    AUTOC2      0x042A8                RW = 0x000A0000       "Auto-Negotiation Control 2, 8.2.3.22.22";
    ANLP1       0x042B0                RO                    "Auto-Negotiation Link Partner Link Control Word 1, 8.2.3.22.23";
    ANLP2       0x042B4                RO                    "Auto-Negotiation Link Partner Link Control Word 2, 8.2.3.22.24";
    MDFTC1      0x042B8                RW                    "MAC Delay Control 1, 8.2.3.22";
    LINKS2      0x04324                RO                    "Link Status 2, 8.2.3.22.21";
    MACC        0x04330                RW                    "MAC Control, 8.2.3.22.26";
    RTTDCS      0x04900                RW = 0x00C00000       "DCB Transmit Descriptor Plane Control, 8.2.3.10.2";
    RTTDQSEL    0x04904                RW bits 0x0000007F    "DCB Transmit Descriptor Plane Queue Select, 8.2.3.10.13";
    RTTDT1C     0x04908                RW bits 0x00003FFF    "DCB Transmit Descriptor Plane T1 Config, 8.2.3.10.14";
    RTTDT1S     0x0490C                RO                    "DCB Transmit Descriptor Plane T1 Status, 8.2.3.10.15";
    RTTDT2C     0x04910 + 4 * 8        RW                    "DCB Transmit Descriptor Plane T2 Config, 8.2.3.10.10";
    RTTDT2S     0x04930 + 4 * 8        RO                    "DCB Transmit Descriptor Plane T2 Status, 8.2.3.10.11";
    TXPBTHRESH  0x04950 + 4 * 8        RW bits 0x000003FF    "Tx Packet Buffer Threshold, 8.2.3.9.16";
    RTTBCNRM    0x04980                RW                    "DCB Transmit Rate-Scheduler MMW, 8.2.3.10.16";
    RTTBCNRC    0x04984                RW                    "DCB Transmit Rate-Scheduler Config, 8.2.3.10.16";
    RTTBCNRS    0x04988                RW                    "DCB Transmit Rate-Scheduler Status, 8.2.3.10.17";
    DMATXCTL    0x04A80                RW = 0x81000004       "DMA Tx Control, 8.2.3.9.2";
    DTXTCPFLGL  0x04A88                RW = 0x0FF60FF6       "DMA Tx TCP Flags Control Low, 8.2.3.9.3";
    DTXTCPFLGH  0x04A8C                RW = 0x00000F7F       "DMA Tx TCP Flags Control High, 8.2.3.9.4";
    RTTBCNTG    0x04A90                RW                    "DCB Transmit BCN Tag, 8.2.3.10";
    PFMAILBOX   0x04B00 + 4 * 64       RW                    "PF Mailbox, 8.2.3.27";
    RXCSUM      0x05000                RW                    "Receive Checksum Control, 8.2.3.7.5";
    RFCTL       0x05008                RW                    "Receive Filter Control, 8.2.3.7.6";
    FCTRL       0x05080                RW bits 0x00003702                    "Filter Control, 8.2.3.7.1";
    VLNCTRL     0x05088                RW bits 0x7000FFFF = 0x00008100       "VLAN Control, 8.2.3.7.2";
    MCSTCTRL    0x05090                RW bits 0x00000007                    "Multicast Control, 8.2.3.7.3";
    FCCRC       0x05118                RC                    "FC CRC Error Count, 8.2.3.23";
    RXMTRL      0x05120                RW                    "Rx Message Type Low, 8.2.3.26.6";
    ETQF        0x05128 + 4 * 8        RW                    "EType Queue Filter, 8.2.3.7";
    VMTXSW      0x05180 + 4 * 2        RW                    "VM Tx Switch Enable, 8.2.3.27";
    TSYNCRXCTL  0x05188                RW                    "Rx Time Sync Control, 8.2.3.26.1";
    PFVTCTL     0x051B0                RW                    "PF Virtual Control, 8.2.3.27";
    PFVFRE      0x051E0 + 4 * 2        RW                    "PF VF Receive Enable, 8.2.3.27";
    MTA         0x05200 + 4 * 128      RW                    "Multicast Table Array, 8.2.3.7.7";
    WUC         0x05800                RW bits 0x0000001B    "Wake Up Control, 8.2.3.24.1";
    WUFC        0x05808                RW bits 0x003F80FF    "Wake Up Filter Control, 8.2.3.24.2";
    WUS         0x05810                W1C                   "Wake Up Status, 8.2.3.24.3";
    IPAV        0x05838                RW                    "IP Address Valid, 8.2.3.24.5";
    IMIR        0x05A80 + 4 * 8        RW                    "Immediate Interrupt Rx, 8.2.3.5";
    IMIREXT     0x05AA0 + 4 * 8        RW                    "Immediate Interrupt Rx Extended, 8.2.3.5";
    IMIRVP      0x05AC0                RW                    "Immediate Interrupt on Rx VLAN Priority, 8.2.3.7.18";
    TDBAL       0x06000 + 0x40 * 128   DMA bits 0xFFFFFF80                   "Transmit Descriptor Base Address Low, 8.2.3.9.5";
    TDBAH       0x06004 + 0x40 * 128   DMA                   "Transmit Descriptor Base Address High, 8.2.3.9.6";
    TDLEN       0x06008 + 0x40 * 128   RW bits 0x000FFF80                    "Transmit Descriptor Length, 8.2.3.9.7";
    DCA_TXCTRL  0x0600C + 0x40 * 128   RW = 0x00002A00       "Tx DCA Control, 8.2.3.11.2";
    TDH         0x06010 + 0x40 * 128   RW                    "Transmit Descriptor Head, 8.2.3.9.8";
    TDT         0x06018 + 0x40 * 128   RW                    "Transmit Descriptor Tail, 8.2.3.9.9";
    TXDCTL      0x06028 + 0x40 * 128   RW bits 0x0E7F7F7F clears 0x04000000                    "Transmit Descriptor Control, 8.2.3.9.10";
    TDWBAL      0x06038 + 0x40 * 128   DMA                   "Tx Descriptor Completion Write Back Address Low, 8.2.3.9.11";
    TDWBAH      0x0603C + 0x40 * 128   DMA                   "Tx Descriptor Completion Write Back Address High, 8.2.3.9.12";
    PFVMVIR     0x08000 + 4 * 64       RW                    "PF VM VLAN Insert, 8.2.3.27";
    DTXMXSZRQ   0x08100                RW bits 0x00000FFF = 0x00000010       "DMA Tx TCP Max Allow Size Requests, 8.2.3.9.1";
    PFVFTE      0x08110 + 4 * 2        RW                    "PF VF Transmit Enable, 8.2.3.27";
    MTQC        0x08120                RW                    "Multiple Transmit Queues Command, 8.2.3.9";
    PFVFSPOOF   0x08200 + 4 * 8        RW                    "PF VF Anti Spoof, 8.2.3.27";
    PFDTXGSWC   0x08220                RW                    "PF DMA Tx General Switch Control, 8.2.3.27";
    TQSM        0x08600 + 4 * 32       RW                    "Transmit Queue Statistic Mapping, 8.2.3.23.73";
    QPTC        0x08680 + 4 * 16       RC                    "Queue Packets Transmitted Count, 8.2.3.23";
    QBTC_L      0x08700 + 8 * 16       RC                    "Queue Bytes Transmitted Count Low, 8.2.3.23";
    QBTC_H      0x08704 + 8 * 16       RC                    "Queue Bytes Transmitted Count High, 8.2.3.23";
    SSVPC       0x08780                RC                    "Switch Security Violation Packet Count, 8.2.3.23";
    FCOEPTC     0x08784                RC                    "FCoE Packets Transmitted Count, 8.2.3.23";
    FCOEDWTC    0x08788                RC                    "FCoE DWord Transmitted Count, 8.2.3.23";
    SECTXCTRL   0x08800                RW bits 0x00000007    "Security Tx Control, 8.2.3.12.1";
    SECTXSTAT   0x08804                RO = 0x00000001       "Security Tx Status, 8.2.3.12.2";
    SECTXBUFFAF 0x08808                RW = 0x00000250       "Security Tx Buffer Almost Full, 8.2.3.12.3";
    SECTXMINIFG 0x08810                RW = 0x00001001       "Security Tx Buffer Minimum IFG, 8.2.3.12.4";
    TSYNCTXCTL  0x08C00                RW                    "Tx Time Sync Control, 8.2.3.26.2";
    SYSTIML     0x08C0C                RW                    "System Time Low, 8.2.3.26.9";
    SYSTIMH     0x08C10                RW                    "System Time High, 8.2.3.26.10";
    TIMINCA     0x08C14                RW                    "Increment Attributes, 8.2.3.26.11";
    SECRXCTRL   0x08D00                RW bits 0x00000003    "Security Rx Control, 8.2.3.12.5";
    SECRXSTAT   0x08D04                RO = 0x00000001       "Security Rx Status, 8.2.3.12.6";
    VFTA        0x0A000 + 4 * 128      RW                    "VLAN Filter Table Array, 8.2.3.7.11";
    RAL         0x0A200 + 8 * 128      RW                    "Receive Address Low, 8.2.3.7.8";
    RAH         0x0A204 + 8 * 128      RW bits 0x8000FFFF                    "Receive Address High, 8.2.3.7.9";
    MPSAR       0x0A600 + 4 * 256      RW                    "MAC Pool Select Array, 8.2.3.7.10";
    RTTUP2TC    0x0C800                RW                    "DCB Transmit User Priority to Traffic Class, 8.2.3.10.5";
    TXPBSIZE    0x0CC00 + 4 * 8        RW bits 0x000FFC00    "Transmit Packet Buffer Size, 8.2.3.9.13";
    RTTPCS      0x0CD00                RW bits 0xFFC00160 = 0x01000000 "DCB Transmit Packet Plane Control and Status, 8.2.3.10.3";
    MNGTXMAP    0x0CD10                RW bits 0x00000007    "Manageability Transmit TC Mapping, 8.2.3.9.14";
    RTTPT2C     0x0CD20 + 4 * 8        RW                    "DCB Transmit Packet Plane T2 Config, 8.2.3.10.12";
    RTTPT2S     0x0CD40 + 4 * 8        RO                    "DCB Transmit Packet Plane T2 Status, 8.2.3.10.12";
    TFCS        0x0CE00                RO = 0x000000FF       "Transmit Flow Control Status, 8.2.3.3.6";
    MNGPTC      0x0CF90                RC                    "Management Packets Transmitted Count, 8.2.3.23";
    SAQF        0x0E000 + 4 * 128      RW                    "Source Address Queue Filter, 8.2.3.7.16";
    DAQF        0x0E200 + 4 * 128      RW                    "Destination Address Queue Filter, 8.2.3.7.17";
    SDPQF       0x0E400 + 4 * 128      RW                    "Source Destination Port Queue Filter, 8.2.3.7.18";
    FTQF        0x0E600 + 4 * 128      RW                    "Five Tuple Queue Filter, 8.2.3.7.19";
    L34TIMIR    0x0E800 + 4 * 128      RW                    "L3 L4 Tuples Immediate Interrupt Rx, 8.2.3.7";
    PSRTYPE     0x0EA00 + 4 * 64       RW                    "Packet Split Receive Type, 8.2.3.7.4";
    RETA        0x0EB00 + 4 * 32       RW                    "Redirection Table, 8.2.3.7.15";
    RSSRK       0x0EB80 + 4 * 10       RW                    "RSS Random Key, 8.2.3.7.14";
    ETQS        0x0EC00 + 4 * 8        RW                    "EType Queue Select, 8.2.3.7";
    SYNQF       0x0EC30                RW                    "SYN Packet Queue Filter, 8.2.3.7";
    RQTC        0x0EC70                RW                    "RSS Queues Per Traffic Class, 8.2.3.7.13";
    MRQC        0x0EC80                RW                    "Multiple Receive Queues Command, 8.2.3.7.12";
    FDIRCTRL    0x0EE00                RW                    "Flow Director Filters Control, 8.2.3.21";
    FDIRSIPV6   0x0EE0C + 4 * 3        RW                    "Flow Director Filters Source IPv6, 8.2.3.21";
    FDIRIPSA    0x0EE18                RW                    "Flow Director Filters IP SA, 8.2.3.21";
    FDIRIPDA    0x0EE1C                RW                    "Flow Director Filters IP DA, 8.2.3.21";
    FDIRPORT    0x0EE20                RW                    "Flow Director Filters Port, 8.2.3.21";
    FDIRVLAN    0x0EE24                RW                    "Flow Director Filters VLAN and Flex Bytes, 8.2.3.21";
    FDIRHASH    0x0EE28                RW                    "Flow Director Filters Hash Signature, 8.2.3.21";
    FDIRCMD     0x0EE2C                RW                    "Flow Director Filters Command Register, 8.2.3.21";
    FDIRFREE    0x0EE38                RW                    "Flow Director Filters Free, 8.2.3.21";
    FDIRDIP4M   0x0EE3C                RW                    "Flow Director Filters DIPv4 Mask, 8.2.3.21";
    FDIRSIP4M   0x0EE40                RW                    "Flow Director Filters SIPv4 Mask, 8.2.3.21";
    FDIRTCPM    0x0EE44                RW                    "Flow Director Filters TCP Mask, 8.2.3.21";
    FDIRUDPM    0x0EE48                RW                    "Flow Director Filters UDP Mask, 8.2.3.21";
    FDIRLEN     0x0EE4C                RC                    "Flow Director Filters Length, 8.2.3.21";
    FDIRUSTAT   0x0EE50                RC                    "Flow Director Filters Usage Statistics, 8.2.3.21";
    FDIRFSTAT   0x0EE54                RC                    "Flow Director Filters Failed Usage Statistics, 8.2.3.21";
    FDIRMATCH   0x0EE58                RC                    "Flow Director Filters Match Statistics, 8.2.3.21";
    FDIRMISS    0x0EE5C                RC                    "Flow Director Filters Miss Statistics, 8.2.3.21";
    FDIRHKEY    0x0EE68                RW                    "Flow Director Filters Lookup Table HASH Key, 8.2.3.21";
    FDIRSKEY    0x0EE6C                RW                    "Flow Director Filters Signature Hash Key, 8.2.3.21";
    FDIRM       0x0EE70                RW                    "Flow Director Filters Other Mask, 8.2.3.21";
    FDIRIP6M    0x0EE74                RW                    "Flow Director Filters IPv6 Mask, 8.2.3.21";
    PFVML2FLT   0x0F000 + 4 * 64       RW                    "PF VM L2 Control, 8.2.3.27";
    PFVLVF      0x0F100 + 4 * 64       RW                    "PF VM VLAN Pool Filter, 8.2.3.27";
    PFVLVFB     0x0F200 + 4 * 128      RW                    "PF VM VLAN Pool Filter Bitmap, 8.2.3.27";
    PFUTA       0x0F400 + 4 * 128      RW                    "PF Unicast Table Array, 8.2.3.27";
    MRCTL       0x0F600 + 4 * 4        RW                    "PF Mirror Rule Control, 8.2.3.27";
    VMRVLAN     0x0F610 + 4 * 8        RW                    "PF Mirror Rule VLAN, 8.2.3.27";
    VMRVM       0x0F630 + 4 * 8        RW                    "PF Mirror Rule Pool, 8.2.3.27";
    EEC         0x10010                RW bits 0x00000077 = 0x00001310       "EEPROM/Flash Control, 8.2.3.2.1";
    EERD        0x10014                RW                    "EEPROM Read, 8.2.3.2.2";
    EEWR        0x10018                RW                    "EEPROM Write, 8.2.3.2";
    FLA         0x1001C                RW                    "Flash Access, 8.2.3.2.3";
    EEMNGCTL    0x10110                RO = 0x000C0000       "Manageability EEPROM Control, 8.2.3.2.4";
    FLOP        0x1013C                RW = 0x00000DB0       "Flash Opcode, 8.2.3.2.8";
    SWSM        0x10140                RW bits 0x00000003    "Software Semaphore, 8.2.3.4.11";
    FWSM        0x10148                RO = 0x00008000       "Firmware Semaphore, 8.2.3.4.12";
    FACTPS      0x10150                RO                    "Function Active and Power State to Manageability, 8.2.3.4.14";
    SW_FW_SYNC  0x10160                RW                    "Software-Firmware Synchronization, 8.2.3.4.13";
    GRC         0x10200                RW                    "General Receive Control, 8.2.3.2.9";
    GCR         0x11000                RW = 0x00014000       "PCIe Control, 8.2.3.4.1";
    FUNCTAG     0x11008                RW                    "Function Tag, 8.2.3.4.6";
    GSCL        0x11010 + 4 * 4        RW                    "PCIe Statistics Control, 8.2.3.4.2";
    GSCN        0x11020 + 4 * 4        RW                    "PCIe Statistic Counters, 8.2.3.4.5";
    GCR_EXT     0x11050                RW                    "PCIe Control Extended, 8.2.3.4.8";
    MREVID      0x11064                RO = 0x00000001       "Mirrored Revision ID, 8.2.3.4.7";
    DCA_ID      0x11070                RO                    "DCA Requester ID Information, 8.2.3.11.3";
    DCA_CTRL    0x11074                RW = 0x00000001       "DCA Control, 8.2.3.11.4";
    PICAUSE     0x110B0                W1C                   "PCIe Interrupt Cause, 8.2.3.4";
    PIENA       0x110B8                RW                    "PCIe Interrupt Enable, 8.2.3.4";
    PBACL       0x110C0 + 4 * 8        W1C                   "MSI-X PBA Clear, 8.2.3.6.3";
    EITR_24     0x12300 + 4 * 104      RW bits 0x001F8FF8    "Extended Interrupt Throttle, vectors from 24 on, 8.2.3.5.12";
    PFMBMEM     0x13000 + 4 * 1024     RW                    "PF Mailbox Memory, 8.2.3.27";
    CORECTL     0x14F00                RW                    "Core Analog Configuration, 8.2.3.22.32";
}

/// Bits of the registers, grouped by register.
pub mod bits {
    macro_rules! bits {
        ($($name:ident $value:literal $doc:literal;)*) => { $(#[doc = $doc] pub const $name: u32 = $value;)* };
    }
    bits! {
        GPIE_MSIX_MODE     0x0000_0010 "One vector for each cause, by MSI-X";
        GPIE_OCD           0x0000_0020 "Reading EICR clears only causes that are not of queues";
        GPIE_EIAME         0x4000_0000 "A message masks its causes, as EIAM selects";
        GPIE_PBA_SUPPORT   0x8000_0000 "Pending bits, to be set with MSI-X";
        IVAR_VALID         0x0000_0080 "The lowest of four entries is valid";
        EITR_CNT_WDIS      0x8000_0000 "Leave the counter as it is";
        EICR_RX_MISS       0x0002_0000 "A frame was lost because the packet buffer was full";
        EICR_LSC           0x0010_0000 "Link status change";
        EICR_TCP_TIMER     0x4000_0000 "TCP timer expired";
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
        RXCSUM_IPPCSE      0x0000_1000 "Check the checksum of IP payloads";
        RXCSUM_PCSD        0x0000_2000 "The descriptor has the RSS hash, not the checksum of fragments";
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
        VLNCTRL_VFE        0x4000_0000 "VLAN filter enable";
        MTQC_VT_ENA        0x0000_0002 "Pools";
        MTQC_64_POOLS      0x0000_0004 "64 pools of two queues";
        PFVTCTL_VT_ENA     0x0000_0001 "Pools";
        PFVML2FLT_AUPE     0x0100_0000 "The pool accepts untagged frames";
        PFVML2FLT_BAM      0x0800_0000 "The pool accepts broadcast";
        PFVML2FLT_MPE      0x1000_0000 "The pool accepts all multicast";
        PFVLVF_VI_EN       0x8000_0000 "The VLAN id is valid";
        FTQF_TCP           0x0000_0000 "TCP";
        FTQF_UDP           0x0000_0001 "UDP";
        FTQF_SCTP          0x0000_0002 "SCTP";
        FTQF_PRIORITY_1    0x0000_0004 "The lowest priority";
        FTQF_MASK_SOURCE   0x0200_0000 "Leave out the source address";
        FTQF_MASK_DESTINATION 0x0400_0000 "Leave out the destination address";
        FTQF_MASK_SOURCE_PORT 0x0800_0000 "Leave out the source port";
        FTQF_MASK_DESTINATION_PORT 0x1000_0000 "Leave out the destination port";
        FTQF_MASK_PROTOCOL 0x2000_0000 "Leave out the protocol";
        FTQF_MASK_POOL     0x4000_0000 "Leave out the pool";
        FTQF_ENABLE        0x8000_0000 "The filter is on";
        L34TIMIR_RESERVED  0x0008_0000 "To be written as one";
        RXDCTL_ENABLE      0x0200_0000 "Queue enable; reads back when done";
        RXDCTL_VME         0x4000_0000 "Strip the VLAN tag into the descriptor";
        SRRCTL_BSIZEPACKET 0x0000_001F "Size of a buffer, in KiB";
        SRRCTL_DESCTYPE_ADV_ONEBUF 0x0200_0000 "Advanced descriptor, one buffer";
        SRRCTL_DROP_EN     0x1000_0000 "Drop when no descriptor is left";
        TXDCTL_ENABLE      0x0200_0000 "Queue enable; reads back when done";
        DMATXCTL_TE        0x0000_0001 "Transmit enable";
        RTTDCS_ARBDIS      0x0000_0040 "Arbiter disable";
        TDWBAL_HEAD_WB_EN  0x0000_0001 "Head write-back enable";
        MRQC_MRQE_RSS      0x0000_0001 "RSS only";
        MRQC_MRQE_VMDQ     0x0000_0008 "64 pools of two queues, without RSS";
        MRQC_RSS_TCP_IPV4  0x0001_0000 "Hash addresses and ports of TCP over IPv4";
        MRQC_RSS_IPV4      0x0002_0000 "Hash addresses of IPv4";
        MRQC_RSS_IPV6      0x0010_0000 "Hash addresses of IPv6";
        MRQC_RSS_TCP_IPV6  0x0020_0000 "Hash addresses and ports of TCP over IPv6";
        MRQC_RSS_UDP_IPV4  0x0040_0000 "Hash addresses and ports of UDP over IPv4";
        MRQC_RSS_UDP_IPV6  0x0080_0000 "Hash addresses and ports of UDP over IPv6";
    }
}

/// Fields of the second half of a descriptor, as a little-endian 64-bit number. The first half is the address
/// of the buffer in a read format, and holds other fields in a write-back format.
pub mod descriptor {
    /// Rx write-back (7.1.6.2): the card is done with the descriptor.
    pub const RX_DD: u64 = 1 << 0;
    /// Rx write-back: the frame ends in this buffer.
    pub const RX_EOP: u64 = 1 << 1;
    /// Rx write-back: error found by the MAC (RXE: CRC, symbol or length), bit 29 of the status and error word.
    pub const RX_RXE: u64 = 1 << 29;
    /// Rx write-back: length of the data in this buffer, 16 bits.
    pub const RX_LENGTH_SHIFT: u32 = 32;
    /// Rx write-back: the VLAN tag was removed from the frame.
    pub const RX_VP: u64 = 1 << 3;
    /// Rx write-back: the TCP, UDP or SCTP checksum was verified.
    pub const RX_L4CS: u64 = 1 << 5;
    /// Rx write-back: the IPv4 header checksum was verified.
    pub const RX_IPCS: u64 = 1 << 6;
    /// Rx write-back: the TCP, UDP or SCTP checksum is wrong.
    pub const RX_L4E: u64 = 1 << 30;
    /// Rx write-back: the IPv4 header checksum is wrong.
    pub const RX_IPE: u64 = 1 << 31;
    /// Rx write-back: the VLAN tag, 16 bits.
    pub const RX_VLAN_SHIFT: u32 = 48;
    /// Rx write-back, first half: type of the RSS hash's input; 0 if there is no hash. The hash is in the upper
    /// 32 bits.
    pub const RX_RSS_TYPE_MASK: u64 = 0xf;
    /// Tx data descriptor (7.2.3.2.4): type "advanced data". The lowest 16 bits are the number of bytes in this
    /// buffer.
    pub const TX_DTYP_DATA: u64 = 0b0011 << 20;
    /// Tx: the frame ends in this buffer.
    pub const TX_EOP: u64 = 1 << 24;
    /// Tx: insert the frame's CRC.
    pub const TX_IFCS: u64 = 1 << 25;
    /// Tx: report status (DD).
    pub const TX_RS: u64 = 1 << 27;
    /// Tx: advanced descriptor.
    pub const TX_DEXT: u64 = 1 << 29;
    /// Tx: insert the VLAN tag of the context.
    pub const TX_VLE: u64 = 1 << 30;
    /// Tx: segment the TCP stream.
    pub const TX_TSE: u64 = 1 << 31;
    /// Tx: fill in the IPv4 header checksum.
    pub const TX_IXSM: u64 = 1 << 40;
    /// Tx: fill in the TCP, UDP or SCTP checksum.
    pub const TX_TXSM: u64 = 1 << 41;
    /// Tx context descriptor (7.2.3.2.3): type.
    pub const TX_DTYP_CONTEXT: u64 = 0b0010 << 20;
    /// Tx context: the packet is IPv4.
    pub const TX_CONTEXT_IPV4: u64 = 1 << 10;
    /// Tx context: UDP.
    pub const TX_CONTEXT_L4_UDP: u64 = 0b00 << 11;
    /// Tx context: TCP.
    pub const TX_CONTEXT_L4_TCP: u64 = 0b01 << 11;
    /// Tx context: length of the TCP header, 8 bits.
    pub const TX_CONTEXT_L4LEN_SHIFT: u32 = 40;
    /// Tx context: bytes of payload in each segment, 16 bits.
    pub const TX_CONTEXT_MSS_SHIFT: u32 = 48;
    /// Tx context, first half: length of the Ethernet header. The length of the IP header is in the lowest 9 bits.
    pub const TX_CONTEXT_MACLEN_SHIFT: u32 = 9;
    /// Tx context, first half: the VLAN tag.
    pub const TX_CONTEXT_VLAN_SHIFT: u32 = 16;
    /// Tx write-back (7.2.3.2.5): the card is done with this descriptor and those before it.
    pub const TX_DD: u64 = 1 << 32;
    /// Tx: length of the whole frame, 18 bits.
    pub const TX_PAYLEN_SHIFT: u32 = 46;
}

/// Intel's PCI vendor id.
pub const VENDOR: u16 = 0x8086;

/// Members of the family, each with the PCI device ids of its cards. Virtual functions have other registers and
/// are not listed.
pub const MODELS: &[(&str, &[u16])] = &[
    ("82599", &[0x10f7, 0x10f8, 0x10f9, 0x10fb, 0x10fc, 0x1507, 0x1514, 0x1517, 0x151c]),
    ("82599", &[0x1529, 0x152a, 0x154a, 0x154d, 0x1557, 0x1558]),
    ("X540", &[0x1528, 0x1560]),
    ("X550", &[0x1563, 0x15d1]),
];
