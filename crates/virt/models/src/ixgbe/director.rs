//! Flow director (7.1.2.7): a table from flows to queues that the driver fills while it sends.

use std::collections::HashMap;

use ringpass_pci::registers::RegisterFile;
use ringpass_pci::registers::ixgbe::*;

use super::bits::*;
use super::headers::{Headers, IPV4, IPV6, SCTP, TCP, UDP};
use super::rss::Class;

/// Fields of a frame or a filter that flow director matches: the input of its hash (7.1.2.7.1), as numbers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Flow {
    pool: u8,
    /// 1 for UDP, 2 for TCP, 3 for SCTP, else 0; plus 4 for IPv6.
    kind: u8,
    vlan: u16,
    /// IPv4 addresses are in the first word.
    source: [u32; 4],
    destination: [u32; 4],
    source_port: u16,
    destination_port: u16,
    /// Two bytes of the frame, at an offset given by FDIRCTRL.
    flexible: u16,
}

impl Flow {
    const IPV6: u8 = 4;

    /// Returns the flow of a received frame; `None` if it is not IP.
    fn of(headers: &Headers, frame: &[u8], tag: Option<u16>, pool: Option<u8>, flexible_at: usize) -> Option<Self> {
        let above = match headers.packet_type & (TCP | UDP | SCTP) {
            UDP => 1,
            TCP => 2,
            SCTP => 3,
            _ => 0,
        };
        let address = |i: usize, bytes: &[u8]| {
            bytes.get(4 * i..4 * i + 4).map_or(0, |word| u32::from_be_bytes(word.try_into().expect("four bytes")))
        };
        let (source, destination) = headers.addresses.split_at(headers.addresses.len() / 2);
        let [a, b, c, d] = headers.port_bytes();
        let flexible = frame.get(flexible_at..flexible_at + 2).unwrap_or(&[0, 0]);
        (headers.packet_type & (IPV4 | IPV6) != 0).then(|| Self {
            pool: pool.unwrap_or(0),
            kind: if headers.is(IPV6) { Self::IPV6 | above } else { above },
            // The CFI bit is ignored.
            vlan: tag.unwrap_or(0) & 0xefff,
            source: std::array::from_fn(|i| address(i, source)),
            destination: std::array::from_fn(|i| address(i, destination)),
            source_port: u16::from_be_bytes([a, b]),
            destination_port: u16::from_be_bytes([c, d]),
            flexible: u16::from_be_bytes([flexible[0], flexible[1]]),
        })
    }

    /// Returns the flow that the registers describe (8.2.3.21), for a perfect match.
    fn programmed(registers: &RegisterFile) -> Self {
        let get = |offset| registers.get(offset);
        let command = get(FDIRCMD.offset);
        let ports = get(FDIRPORT.offset);
        let vlan = get(FDIRVLAN.offset);
        Self {
            pool: (command >> 24 & 0x3f) as u8,
            kind: (command >> 5 & 7) as u8,
            vlan: vlan as u16 & 0xefff,
            // Addresses and flexible bytes are in the registers in wire order, lowest byte first.
            source: [get(FDIRIPSA.offset).swap_bytes(), 0, 0, 0],
            destination: [get(FDIRIPDA.offset).swap_bytes(), 0, 0, 0],
            source_port: ports as u16,
            destination_port: (ports >> 16) as u16,
            flexible: ((vlan >> 16) as u16).swap_bytes(),
        }
    }

    /// Returns the hash with one of the two keys: the input, folded to 32 bits, is shifted by the position of
    /// each set bit of the key.
    fn hash(&self, key: u32) -> u16 {
        let first = u32::from(self.pool) << 24 | u32::from(self.kind) << 16 | u32::from(self.vlan);
        let ports = u32::from(self.source_port) << 16 | u32::from(self.destination_port);
        let addresses = self.source.iter().chain(&self.destination).fold(0, |all, word| all ^ word);
        let folded = addresses ^ ports ^ u32::from(self.flexible) << 16;
        // The stream has 351 bits, one fewer than eleven words, so for bit 0 its beginning does not overlap
        // with itself.
        let high = folded ^ first ^ first >> 16;
        let low = folded.rotate_right(16);
        let set = (0..16)
            .filter(|bit| key >> bit & 1 != 0)
            .fold(0, |hash, bit| hash ^ if bit == 0 { low } else { (low ^ first ^ first << 16) >> bit });
        (0..16).filter(|bit| key >> (bit + 16) & 1 != 0).fold(set, |hash, bit| hash ^ high >> bit) as u16 & 0x7fff
    }
}

/// Flow director's settings, decoded from its registers. The table is in [`Director`].
pub(super) struct Settings {
    perfect: bool,
    bucket_key: u32,
    signature_key: u32,
    /// Mask of a bucket's number.
    bucket_mask: u16,
    /// Bits that are compared; bits that are 0 match anything.
    mask: Flow,
    /// Masks of source and destination port, for UDP and for TCP.
    udp_ports: (u16, u16),
    tcp_ports: (u16, u16),
    flexible_at: usize,
    drop_queue: u8,
    reports: bool,
}

/// Size of the table for each value of FDIRCTRL.PBALLOC: number of buckets as a power of two, and of filters;
/// first for signature, then for perfect match.
const SIZES: [[(u32, u32); 2]; 4] = [
    [(0, 0), (0, 0)],
    [(13, (8 << 10) - 2), (11, (2 << 10) - 2)],
    [(14, (16 << 10) - 2), (12, (4 << 10) - 2)],
    [(15, (32 << 10) - 2), (13, (8 << 10) - 2)],
];

fn size(control: u32) -> (u32, u32) {
    SIZES[(control & 3) as usize][usize::from(control & FDIRCTRL_PERFECT != 0)]
}

impl Settings {
    /// Decodes the registers; `None` if flow director has no memory.
    pub(super) fn decode(registers: &RegisterFile) -> Option<Self> {
        let get = |offset| registers.get(offset);
        let control = get(FDIRCTRL.offset);
        let other = get(FDIRM.offset);
        let perfect = control & FDIRCTRL_PERFECT != 0;
        // The bits of the port masks are in reverse order; in all masks a 1 means "ignore".
        let ports = |mask: u32| (!(mask as u16).reverse_bits(), !((mask >> 16) as u16).reverse_bits());
        let unless = |bit: u32, field: u16| if perfect && other & bit != 0 { 0 } else { field };
        let kind = unless(FDIRM_L4P, 3) as u8 | Flow::IPV6;
        let mask = Flow {
            pool: unless(FDIRM_POOL, 0x3f) as u8,
            kind,
            vlan: unless(FDIRM_VLANID, 0x0fff) | unless(FDIRM_VLANP, 0xe000),
            source: [!get(FDIRSIP4M.offset).swap_bytes(), 0, 0, 0],
            destination: [!get(FDIRDIP4M.offset).swap_bytes(), 0, 0, 0],
            source_port: 0xffff,
            destination_port: 0xffff,
            flexible: unless(FDIRM_FLEX, 0xffff),
        };
        (control & 3 != 0).then(|| Self {
            perfect,
            bucket_key: get(FDIRHKEY.offset),
            signature_key: get(FDIRSKEY.offset),
            bucket_mask: ((1u32 << size(control).0) - 1) as u16,
            mask,
            udp_ports: ports(get(FDIRUDPM.offset)),
            tcp_ports: ports(get(FDIRTCPM.offset)),
            flexible_at: (control >> 16 & 0x1f) as usize * 2,
            drop_queue: (control >> 8 & 0x7f) as u8,
            reports: control & (FDIRCTRL_REPORT | FDIRCTRL_REPORT_ALWAYS) != 0,
        })
    }

    /// Returns the parts of a flow that a perfect match compares.
    fn masked(&self, flow: &Flow) -> Flow {
        let (source_port, destination_port) = match flow.kind & 3 {
            1 => self.udp_ports,
            2 => self.tcp_ports,
            _ => (0xffff, 0xffff),
        };
        let words = |a: [u32; 4], b: [u32; 4]| std::array::from_fn(|i| a[i] & b[i]);
        Flow {
            pool: flow.pool & self.mask.pool,
            kind: flow.kind & self.mask.kind,
            vlan: flow.vlan & self.mask.vlan,
            source: words(flow.source, self.mask.source),
            destination: words(flow.destination, self.mask.destination),
            source_port: flow.source_port & source_port,
            destination_port: flow.destination_port & destination_port,
            flexible: flow.flexible & self.mask.flexible,
        }
    }
}

/// A filter of the table.
struct Filter {
    /// The signature, or with perfect match an id chosen by the driver.
    id: u16,
    /// The flow, with perfect match.
    flow: Option<Flow>,
    /// Value of FDIRCMD when the filter was added.
    command: u32,
}

/// The table of filters.
#[derive(Default)]
pub(super) struct Director {
    buckets: HashMap<u16, Vec<Filter>>,
    filters: u32,
}

impl Director {
    fn position(&self, bucket: u16, id: u16, flow: Option<&Flow>) -> Option<usize> {
        let same = |filter: &Filter| match flow {
            Some(flow) => filter.flow.as_ref() == Some(flow),
            None => filter.id == id,
        };
        self.buckets.get(&bucket)?.iter().position(same)
    }
}

/// Result of a filter that matched a frame.
pub(super) struct Match {
    pub(super) queue: Option<u8>,
    /// RSS type and upper half of the write-back's first word, if matches are reported.
    report: Option<u64>,
}

impl Match {
    pub(super) fn apply(&self, class: &mut Class) {
        class.status |= RX_FLM;
        class.queue = self.queue.unwrap_or(class.queue);
        if let Some(report) = self.report {
            class.word = class.word & 0xffff_fff0 | report;
        }
    }
}

impl Director {
    /// Creates the table anew after a write to FDIRCTRL (7.1.2.7.4).
    pub(super) fn start(&mut self, control: u32, registers: &mut RegisterFile) {
        *self = Self::default();
        let (_, filters) = size(control);
        let done = if control & 3 == 0 { 0 } else { FDIRCTRL_INIT_DONE };
        registers.set(FDIRCTRL.offset, control & !FDIRCTRL_INIT_DONE | done);
        registers.set(FDIRFREE.offset, filters);
    }

    /// Carries out a write to FDIRCMD: adds, removes or queries a filter.
    pub(super) fn command(&mut self, command: u32, registers: &mut RegisterFile) {
        let Some(settings) = Settings::decode(registers) else {
            return registers.set(FDIRCMD.offset, command & !FDIRCMD_CMD_MASK);
        };
        if command & FDIRCMD_CLEARHT != 0 {
            *self = Self::default();
        }
        let hash = registers.get(FDIRHASH.offset);
        let (bucket, id) = (hash as u16 & settings.bucket_mask, (hash >> 16) as u16 & 0x7fff);
        let flow = settings.perfect.then(|| settings.masked(&Flow::programmed(registers)));
        let found = self.position(bucket, id, flow.as_ref());
        let (mut result, mut valid) = (command & !(FDIRCMD_CMD_MASK | FDIRCMD_FILTER_VALID), false);
        match command & FDIRCMD_CMD_MASK {
            FDIRCMD_ADD => {
                let filter = Filter { id, flow, command: result };
                let added = self.add(bucket, filter, found, command & FDIRCMD_FILTER_UPDATE != 0, registers);
                let counter = if added { FDIRUSTAT } else { FDIRFSTAT };
                count_filter(registers, counter.offset, 0);
            }
            FDIRCMD_REMOVE => {
                if let Some(i) = found {
                    self.buckets.entry(bucket).or_default().remove(i);
                    self.filters -= 1;
                }
                match found {
                    Some(_) => count_filter(registers, FDIRUSTAT.offset, 16),
                    None => count_filter(registers, FDIRFSTAT.offset, 8),
                }
            }
            FDIRCMD_QUERY => {
                valid = found.is_some();
                if let Some(filter) = found.and_then(|i| self.buckets.get(&bucket)?.get(i)) {
                    result = filter.command;
                }
            }
            _ => {}
        }
        let free = size(registers.get(FDIRCTRL.offset)).1 - self.filters;
        registers.set(FDIRFREE.offset, free);
        registers.set(FDIRCMD.offset, if valid { result | FDIRCMD_FILTER_VALID } else { result });
    }

    /// Adds a filter; `false` if it exists already or there is no room.
    fn add(
        &mut self,
        bucket: u16,
        filter: Filter,
        found: Option<usize>,
        update: bool,
        registers: &mut RegisterFile,
    ) -> bool {
        let full = self.filters >= size(registers.get(FDIRCTRL.offset)).1;
        let list = self.buckets.entry(bucket).or_default();
        match found {
            Some(i) if update => list[i] = filter,
            Some(_) => return false,
            None if full => return false,
            None => {
                list.push(filter);
                self.filters += 1;
                let longest = registers.get(FDIRLEN.offset).max(list.len() as u32 - 1);
                registers.set(FDIRLEN.offset, longest.min(0x3f));
            }
        }
        true
    }

    /// Returns the filter's decision on a frame; counts both hits and misses.
    pub(super) fn direct(
        &self,
        settings: &Settings,
        registers: &mut RegisterFile,
        headers: &Headers,
        frame: &[u8],
        tag: Option<u16>,
        pool: Option<u8>,
    ) -> Option<Match> {
        let flow = Flow::of(headers, frame, tag, pool, settings.flexible_at)?;
        let flow = if settings.perfect { settings.masked(&flow) } else { flow };
        let hash = flow.hash(settings.bucket_key);
        let bucket = hash & settings.bucket_mask;
        let id = if settings.perfect { 0 } else { flow.hash(settings.signature_key) };
        let found = self.position(bucket, id, settings.perfect.then_some(&flow));
        let filter = found.and_then(|i| self.buckets.get(&bucket)?.get(i));
        let counter = if filter.is_some() { FDIRMATCH } else { FDIRMISS };
        super::stats::count(registers, counter.offset, 1);
        let filter = filter?;
        let queue = match filter.command {
            command if command & FDIRCMD_DROP != 0 && settings.perfect => Some(settings.drop_queue),
            command if command & FDIRCMD_QUEUE_EN != 0 => Some((command >> 16 & 0x7f) as u8),
            _ => None,
        };
        let report = u64::from(hash) << 48 | u64::from(filter.id) << 32 | RX_RSS_TYPE_DIRECTOR;
        Some(Match { queue, report: settings.reports.then_some(report) })
    }
}

/// Increments a field of a register: fields have 16 bits in FDIRUSTAT, and 8 in FDIRFSTAT.
fn count_filter(registers: &mut RegisterFile, register: u32, shift: u32) {
    let width = if register == FDIRUSTAT.offset { 16 } else { 8 };
    let (value, most) = (registers.get(register), (1 << width) - 1);
    let field = value >> shift & most;
    registers.set(register, value + (u32::from(field < most) << shift));
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Keys that drivers use.
    const BUCKET_KEY: u32 = 0x3dad_14e2;
    const SIGNATURE_KEY: u32 = 0x174d_3614;

    /// Computed by the code of a driver (DPDK's): flows as received, signature and bucket, bucket with perfect
    /// match.
    #[test]
    fn the_hashes_are_those_of_drivers() {
        for (source, source_port, destination, destination_port, vlan, kind, flexible, both, bucket) in [
            ("192.0.2.1", 40000, "198.51.100.7", 443, 0, 2, 0x800, 0x4e31_4c00, 0xc00),
            ("10.0.0.9", 5201, "10.0.0.1", 50312, 0x5, 2, 0x8100, 0x6ba5_2897, 0x897),
            ("203.0.113.77", 53, "192.0.2.200", 1234, 0xe064, 1, 0x8100, 0x51df_54f9, 0x14f9),
            ("127.3.2.1", 1, "9.8.7.6", 65535, 0, 3, 0x800, 0x2079_53ca, 0x13ca),
            ("2001:db8::1", 40000, "2001:db8:1::ff00:42", 443, 0, 6, 0x86dd, 0x0674_7ceb, 0x1ceb),
        ] {
            let words = |address: &str| match address.parse().expect("an address") {
                std::net::IpAddr::V4(v4) => [v4.to_bits(), 0, 0, 0],
                std::net::IpAddr::V6(v6) => std::array::from_fn(|i| (v6.to_bits() >> (96 - 32 * i)) as u32),
            };
            let flow = Flow {
                pool: 0,
                kind,
                vlan,
                source: words(source),
                destination: words(destination),
                source_port,
                destination_port,
                flexible,
            };
            let signature = u32::from(flow.hash(SIGNATURE_KEY)) << 16 | u32::from(flow.hash(BUCKET_KEY));
            assert_eq!((signature, flow.hash(BUCKET_KEY) & 0x1fff), (both, bucket), "{source}");
        }
    }
}
