//! Filters that choose a queue before flow director and RSS do (7.1.2): EtherType, five-tuple, SYN.

use ringpass_pci::registers::RegisterFile;
use ringpass_pci::registers::ixgbe::*;

use super::headers::{Headers, IPV4, SCTP, TCP, UDP};

/// The filters, decoded from their registers.
pub(super) struct Steering {
    types: Vec<TypeFilter>,
    tuples: Vec<TupleFilter>,
    syn: Option<SynFilter>,
}

/// An enabled EtherType filter (7.1.2.3).
struct TypeFilter {
    number: u8,
    ethertype: u16,
    /// Required user priority of the VLAN tag, if it is compared.
    priority: Option<u16>,
    pool: Option<u8>,
    queue: Option<u8>,
}

/// Result of an EtherType filter that matched.
#[derive(Clone, Copy)]
pub(super) struct TypeMatch {
    pub(super) number: u8,
    pub(super) pool: Option<u8>,
    pub(super) queue: Option<u8>,
}

/// An enabled five-tuple filter (7.1.2.5). A field that is `None` matches all.
struct TupleFilter {
    priority: u8,
    source: Option<[u8; 4]>,
    destination: Option<[u8; 4]>,
    source_port: Option<[u8; 2]>,
    destination_port: Option<[u8; 2]>,
    protocol: Option<u64>,
    pool: Option<u8>,
    queue: u8,
}

/// The SYN filter (7.1.2.6).
struct SynFilter {
    queue: u8,
    before_tuples: bool,
}

impl Steering {
    /// Decodes the registers; `None` if no filter is enabled.
    pub(super) fn decode(registers: &RegisterFile) -> Option<Self> {
        let get = |offset| registers.get(offset);
        let syn = get(SYNQF.offset);
        let steering = Self {
            types: (0..8)
                .filter_map(|i| TypeFilter::decode(i, get(ETQF.at(i).offset), get(ETQS.at(i).offset)))
                .collect(),
            tuples: (0..128).filter_map(|i| TupleFilter::decode(registers, i)).collect(),
            syn: (syn & 1 != 0).then_some(SynFilter { queue: (syn >> 1 & 0x7f) as u8, before_tuples: syn >> 31 != 0 }),
        };
        let any = !steering.types.is_empty() || !steering.tuples.is_empty() || steering.syn.is_some();
        any.then_some(steering)
    }

    /// Returns the EtherType filter that matches a frame; `type_offset` is the offset of its type, after a tag
    /// if there is one.
    pub(super) fn by_type(&self, frame: &[u8], type_offset: usize, tag: Option<u16>) -> Option<TypeMatch> {
        let ethertype = u16::from_be_bytes(frame.get(type_offset..type_offset + 2)?.try_into().ok()?);
        let fits = |filter: &&TypeFilter| {
            filter.ethertype == ethertype
                && filter.priority.is_none_or(|wanted| tag.is_some_and(|tag| tag >> 13 == wanted))
        };
        let filter = self.types.iter().find(fits)?;
        Some(TypeMatch { number: filter.number, pool: filter.pool, queue: filter.queue })
    }

    /// Returns the queue that the five-tuple filters or the SYN filter choose, in the order set in SYNQF.
    pub(super) fn by_headers(&self, headers: &Headers, pool: Option<u8>) -> Option<u8> {
        let syn = || self.syn.as_ref().filter(|_| headers.tcp_flags().is_some_and(|flags| flags & 0x02 != 0));
        let tuple = || {
            let fitting = self.tuples.iter().filter(|filter| filter.fits(headers, pool));
            // Of filters with the same priority, the first one decides.
            fitting.rev().max_by_key(|filter| filter.priority).map(|filter| filter.queue)
        };
        match syn() {
            Some(filter) if filter.before_tuples => Some(filter.queue),
            filter => tuple().or(filter.map(|filter| filter.queue)),
        }
    }
}

impl TypeFilter {
    fn decode(number: usize, filter: u32, select: u32) -> Option<Self> {
        (filter >> 31 != 0).then_some(Self {
            number: number as u8,
            ethertype: filter as u16,
            priority: (filter >> 19 & 1 != 0).then_some((filter >> 16 & 7) as u16),
            pool: (filter >> 26 & 1 != 0).then_some((filter >> 20 & 0x3f) as u8),
            queue: (select >> 31 != 0).then_some((select >> 16 & 0x7f) as u8),
        })
    }
}

impl TupleFilter {
    fn decode(registers: &RegisterFile, i: usize) -> Option<Self> {
        let get =
            |array: ringpass_pci::registers::RegArray<ringpass_pci::registers::RW>| registers.get(array.at(i).offset);
        let control = get(FTQF);
        // Addresses and ports are in the registers in wire order, lowest byte first.
        let [a, b, c, d] = get(SDPQF).to_le_bytes();
        let asks = |field: u32| control >> (25 + field) & 1 == 0;
        (control >> 31 != 0).then_some(Self {
            priority: (control >> 2 & 7) as u8,
            source: asks(0).then_some(get(SAQF).to_le_bytes()),
            destination: asks(1).then_some(get(DAQF).to_le_bytes()),
            source_port: asks(2).then_some([a, b]),
            destination_port: asks(3).then_some([c, d]),
            protocol: asks(4).then_some([TCP, UDP, SCTP, 0][(control & 3) as usize]),
            pool: asks(5).then_some((control >> 8 & 0x3f) as u8),
            queue: (get(L34TIMIR) >> 21 & 0x7f) as u8,
        })
    }

    /// Returns whether a frame matches: IPv4 only, and no fragment if ports are compared.
    fn fits(&self, headers: &Headers, pool: Option<u8>) -> bool {
        let [a, b, c, d] = headers.port_bytes();
        let has_ports = !headers.ports.is_empty();
        headers.is(IPV4)
            && self.source.is_none_or(|wanted| headers.addresses[..4] == wanted)
            && self.destination.is_none_or(|wanted| headers.addresses[4..] == wanted)
            && self.source_port.is_none_or(|wanted| has_ports && [a, b] == wanted)
            && self.destination_port.is_none_or(|wanted| has_ports && [c, d] == wanted)
            && self.protocol.is_none_or(|wanted| headers.packet_type & (TCP | UDP | SCTP) == wanted)
            && self.pool.is_none_or(|wanted| pool.is_none_or(|pool| pool == wanted))
    }
}
