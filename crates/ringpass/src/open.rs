//! From a port address to a port.

use ringpass_bus::{SysfsPci, VfioUser, addressing_of, open_pci};
use ringpass_memory::{Addressing, DmaRegion, Mempool, MempoolConfig, PageSize, RegionConfig};
use ringpass_port::{Address, Error, PcapConfig, Port, PortConfig, ReplaySpeed};
use ringpass_ports::{Capture, Faults, Null, PacketSocket, Pcap, Tap};
use ringpass_vhost::{Copies, Vhost};
use ringpass_virtio_user::VirtioUser;

use crate::model::Model;
use crate::options::Options;
use crate::{cards, drivers, sandbox};

/// Opens the ports at some addresses, between which packets pass, and the one pool that all packets come from: what one
/// card writes to memory another one may read.
pub fn open<const N: usize>(addresses: [&str; N], options: &Options) -> Result<([Box<dyn Port>; N], Mempool), Error> {
    let (ports, pool) = open_all(&addresses.map(|address| (address, options.port())), options)?;
    Ok((ports.try_into().unwrap_or_else(|_| unreachable!("a port for each address")), pool))
}

/// As [`open`], for any number of ports, each with what it is asked for.
pub fn open_all(addresses: &[(&str, PortConfig)], options: &Options) -> Result<(Vec<Box<dyn Port>>, Mempool), Error> {
    let parsed = addresses.iter().map(|(address, _)| address.parse()).collect::<Result<Vec<Address>, _>>()?;
    // Before anything is taken or made.
    parsed.iter().filter_map(card).try_for_each(|pci| check_card(pci, options))?;
    // One that sees physical addresses, if there is one: the others are told those.
    let mut cards: Vec<&str> = parsed.iter().filter_map(card).collect();
    cards.sort_by_key(|pci| addressing_of(pci) == Addressing::Virtual);
    // Queues beyond those that the options ask for count as ports.
    let further: usize = addresses.iter().map(|(_, config)| config.queues - options.queues).sum();
    let pool = pool(parsed.len() + further, cards.first().copied(), options)?;
    let open = |(address, (_, config)): (_, &(&str, PortConfig))| open_address(address, config, &pool, options);
    let ports = parsed.iter().zip(addresses).map(open).collect::<Result<_, _>>()?;
    Ok((ports, pool))
}

/// A pool for so many ports: enough to fill all rings, and to have some in bursts and caches. On huge pages, unless the
/// options say otherwise or there are too few of them, which is said. For a real card, near it and with addresses that
/// it understands.
pub fn pool(ports: usize, card: Option<&str>, options: &Options) -> Result<Mempool, Error> {
    // Frames that lie in many buffers take more of them at a time.
    let chained = if options.offloads.tso || options.mtu > 1500 { 40 * options.batch } else { 0 };
    let buffers = ports * options.queues * (options.rxd + options.txd + 1024 + chained);
    let addressing = card.map_or(Addressing::Virtual, addressing_of);
    let numa_node = card.and_then(SysfsPci::numa_node_of);
    let pool = |pages| {
        let region = RegionConfig { pages, addressing, numa_node };
        let pool = Mempool::new(&MempoolConfig { buffers, region, ..Default::default() })?;
        // The cards' rings come on top, on the same pages: better to know now that there are too few.
        let rings = options.queues * (options.rxd.max(options.txd) * 2 * 16 + 64);
        let room = (0..ports).map(|_| DmaRegion::new(rings, &region)).collect::<Result<Vec<_>, _>>();
        room.map(|_| pool)
    };
    match pool(options.hugepages.unwrap_or(PageSize::Huge2M)) {
        Err(error) if options.hugepages.is_none() && addressing == Addressing::Virtual => {
            eprintln!("ordinary pages under packets and rings: {error}");
            Ok(pool(PageSize::Ordinary)?)
        }
        result => Ok(result?),
    }
}

/// The real card behind an address, if there is one.
fn card(address: &Address) -> Option<&str> {
    match address {
        Address::Pci(pci) => Some(pci),
        Address::Capture(_, inner) | Address::Faults(_, inner) | Address::Model(_, inner) => card(inner),
        _ => None,
    }
}

/// Opens one port, with packets of a pool.
pub fn open_address(
    address: &Address,
    config: &PortConfig,
    pool: &Mempool,
    options: &Options,
) -> Result<Box<dyn Port>, Error> {
    let open_inner = |inner: &Address| open_address(inner, config, pool, options);
    Ok(match address {
        Address::Pci(pci) => drivers::open(open_pci(pci)?, pci, config, pool)?,
        Address::Model(model, wire) => {
            if let Address::Pcap(PcapConfig { input: Some(_), speed: ReplaySpeed::Max, .. }) = **wire {
                eprintln!("{address}: a card drops frames that come faster than they are taken; add speed=recorded");
            }
            // A wire carries bare frames.
            let (offloads, spread) = Default::default();
            let bare = PortConfig { queues: 1, offloads, spread, ..*config };
            let wire = open_address(wire, &bare, pool, options)?;
            Box::new(Model::open(&address.to_string(), model, wire, (config, pool), options.poll)?)
        }
        Address::VfioUser(path) => drivers::open(VfioUser::open(path)?, &address.to_string(), config, pool)?,
        Address::Vhost(vhost) => {
            sandbox::allow_sessions();
            Box::new(Vhost::open(vhost, config, pool, Copies::default())?)
        }
        Address::VirtioUser(card) => {
            sandbox::allow_sessions();
            Box::new(VirtioUser::open(&address.to_string(), card, config, pool)?)
        }
        Address::Tap(name) => Box::new(Tap::open(name, config, pool)?),
        Address::Packet(name) => Box::new(PacketSocket::open(name, config, pool)?),
        Address::Pcap(pcap) => Box::new(Pcap::open(pcap, config, pool)?),
        Address::Null => Box::new(Null::open(config)),
        Address::Capture(file, inner) => Box::new(Capture::wrap(open_inner(inner)?, file)?),
        Address::Faults(faults, inner) => Box::new(Faults::wrap(open_inner(inner)?, *faults, pool)),
    })
}

/// A real card: refused if there is no driver for it, or if the kernel uses it and nobody said to take it over.
fn check_card(pci: &str, options: &Options) -> Result<(), Error> {
    let id = SysfsPci::identify(pci)?;
    if drivers::supports(id).is_none() {
        let what = cards::describe(pci, id);
        let families = drivers::FAMILIES;
        return Err(Error::Other(format!("{pci}: no driver for this {what}; Ringpass drives {families}")));
    }
    let taken =
        options.take_over.iter().any(|named| named.parse().is_ok_and(|named| Address::Pci(pci.into()) == named));
    if let Some(why) = cards::in_use(pci).filter(|_| !taken) {
        return Err(Error::Other(format!("{pci} is in use: {why}; to take it all the same: --take-over {pci}")));
    }
    Ok(())
}
