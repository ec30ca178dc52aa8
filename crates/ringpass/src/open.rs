//! From a port address to a port.

use std::path::Path;
use std::sync::Arc;

use ringpass_bus::{Bus, SysfsPci, VfioUser, addressing_of, open_pci};
use ringpass_memory::{Addressing, DmaRegion, Mempool, MempoolConfig, PageSize, RegionConfig};
use ringpass_netmap::ProgramPort;
use ringpass_netmap::client::default_socket;
use ringpass_port::{Address, Error, PcapConfig, Port, PortConfig, ReplaySpeed, Role};
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
    // Queues beyond those that the options ask for count as ports.
    let further: usize = addresses.iter().map(|(_, config)| config.queues - options.queues).sum();
    let pool = pool_for(&parsed, further, options)?;
    let open = |(address, (_, config)): (_, &(&str, PortConfig))| open_address(address, config, &pool, options);
    let ports = parsed.iter().zip(addresses).map(open).collect::<Result<_, _>>()?;
    Ok((ports, pool))
}

/// A pool for the ports at some addresses and so many more. Fails if one of them is not to be opened: opening checks that
/// as well, but here nothing has been taken or made yet.
pub fn pool_for(addresses: &[Address], further: usize, options: &Options) -> Result<Mempool, Error> {
    check_cards(addresses, options)?;
    pool(addresses.len() + further, addressed(addresses), options)
}

/// Fails if one of them is not to be opened, before anything is taken or made.
pub fn check_cards(addresses: &[Address], options: &Options) -> Result<(), Error> {
    addresses.iter().filter_map(card).try_for_each(|pci| check_card(pci, options))
}

/// One of their cards that sees physical addresses, if there is one, as the others are told those; else any.
pub fn addressed(addresses: &[Address]) -> Option<&str> {
    addresses.iter().filter_map(card).min_by_key(|pci| addressing_of(pci) == Addressing::Virtual)
}

/// A pool for so many ports: enough to fill all rings, and to have some in bursts and caches. On huge pages, unless the
/// options say otherwise or there are too few of them, which is said. For a real card, near it and with addresses that
/// it understands.
pub fn pool(ports: usize, card: Option<&str>, options: &Options) -> Result<Mempool, Error> {
    // Frames that lie in many buffers take more of them at a time.
    let chained = if options.offloads.tso || options.mtu > 1500 { 40 * options.batch } else { 0 };
    let buffers = ports * options.queues * (options.rxd + options.txd + 1024 + chained);
    on_pages(ports, card, options, |region| {
        Ok(Mempool::new(&MempoolConfig { buffers, region: *region, ..Default::default() })?)
    })
}

/// Makes memory for packets of so many ports on the pages that [`pool`] chooses.
pub fn on_pages<T>(
    ports: usize,
    card: Option<&str>,
    options: &Options,
    make: impl Fn(&RegionConfig) -> Result<T, Error>,
) -> Result<T, Error> {
    let addressing = card.map_or(Addressing::Virtual, addressing_of);
    let numa_node = card.and_then(SysfsPci::numa_node_of);
    let make = |pages| {
        let region = RegionConfig { pages, addressing, numa_node };
        let made = make(&region)?;
        // The cards' rings come on top, on the same pages: better to know now that there are too few.
        let rings = options.queues * (options.rxd.max(options.txd) * 2 * 16 + 64);
        let room = (0..ports).map(|_| DmaRegion::new(rings, &region)).collect::<Result<Vec<_>, _>>();
        Ok::<T, Error>(room.map(|_| made)?)
    };
    match make(options.hugepages.unwrap_or(PageSize::Huge2M)) {
        Err(error) if options.hugepages.is_none() && addressing == Addressing::Virtual => {
            errln!("ordinary pages under packets and rings: {error}");
            make(PageSize::Ordinary)
        }
        result => result,
    }
}

/// Whether the driver of a port takes packets whose buffers have no headroom.
pub fn takes_bare_buffers(address: &Address) -> bool {
    match address {
        Address::Pci(pci) => SysfsPci::identify(pci).is_ok_and(drivers::takes_bare_buffers),
        Address::Model(model, _) => Model::takes_bare_buffers(model),
        _ => false,
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
    open_with_wire(address, config, (pool, pool), options)
}

/// As [`open_address`]; the wire of a model has a pool of its own, the second.
pub fn open_with_wire(
    address: &Address,
    config: &PortConfig,
    (pool, wires): (&Mempool, &Mempool),
    options: &Options,
) -> Result<Box<dyn Port>, Error> {
    let open_inner = |inner: &Address| open_address(inner, config, pool, options);
    if config.rejoin && matches!(address, Address::Tap(..) | Address::Packet(..)) {
        sandbox::allow_rejoining();
    }
    Ok(match address {
        Address::Pci(pci) => open_card(pci, config, pool, options)?,
        Address::Model(model, wire) => {
            if let Address::Pcap(PcapConfig { input: Some(_), speed: ReplaySpeed::Max, .. }) = **wire {
                errln!("{address}: a card drops frames that come faster than they are taken; add speed=recorded");
            }
            // A wire carries bare frames, and ends with its card.
            let (offloads, spread) = Default::default();
            let bare = PortConfig { queues: 1, offloads, spread, rejoin: false, ..*config };
            let wire = open_address(wire, &bare, wires, options)?;
            Box::new(Model::open(&address.to_string(), model, wire, (config, pool), options.poll)?)
        }
        Address::VfioUser(path) => {
            // Beside the port's own socket, if it is a netmap port.
            let mut memory = path.as_os_str().to_owned();
            memory.push(".mem");
            let find = |_| Ok(VfioUser::open(Path::new(&memory))? as Arc<dyn Bus>);
            drivers::open_with_memory(VfioUser::open(path)?, &find, &address.to_string(), config, pool)?
        }
        Address::Vhost(vhost) => {
            sandbox::allow_sessions();
            prepare_connecting(&vhost.path, vhost.role, options)?;
            Box::new(Vhost::open(vhost, config, pool, Copies::default())?)
        }
        Address::VirtioUser(card) => {
            sandbox::allow_sessions();
            prepare_connecting(&card.path, card.role, options)?;
            Box::new(VirtioUser::open(&address.to_string(), card, config, pool)?)
        }
        Address::Netmap(name) => {
            let socket = default_socket().map_err(|error| Error::Other(error.to_string()))?;
            Box::new(ProgramPort::open(name, &socket, config, pool)?)
        }
        Address::Tap(name) => Box::new(Tap::open(name, config, pool)?),
        Address::Packet(name) => Box::new(PacketSocket::open(name, config, pool)?),
        Address::Pcap(pcap) => Box::new(Pcap::open(pcap, config, pool)?),
        Address::Null => Box::new(Null::open(config)),
        Address::Capture(file, inner) => Box::new(Capture::wrap(open_inner(inner)?, file)?),
        Address::Faults(faults, inner) => Box::new(Faults::wrap(open_inner(inner)?, *faults, pool)),
    })
}

/// What a client of a socket needs in the sandbox, where it may have to connect again.
fn prepare_connecting(path: &Path, role: Role, options: &Options) -> Result<(), Error> {
    match role {
        Role::Connect => sandbox::connector::start(path, options),
        Role::Listen => Ok(()),
    }
}

/// Opens a real card. Every address that names one ends here, so that none is taken from the kernel unasked.
fn open_card(pci: &str, config: &PortConfig, pool: &Mempool, options: &Options) -> Result<Box<dyn Port>, Error> {
    check_card(pci, options)?;
    drivers::open_with_memory(open_pci(pci)?, &ringpass_ptnet_driver::find_memory, pci, config, pool)
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

/// Closes the ports of a run that has ended, and logs whether every packet buffer is back in the pool, whose last handle is
/// the caller's. A card that does not stop when told to keeps what it may still write to.
pub fn close(ports: Vec<Box<dyn Port>>, pool: &Mempool) {
    drop(ports);
    tracing::info!("packet buffers: {} of {} are missing", pool.outstanding(1), pool.capacity());
}
