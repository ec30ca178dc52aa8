//! Opens ports by their addresses.

use std::path::Path;
use std::sync::Arc;

use ringpass_host_ports::{Capture, Faults, Null, PacketSocket, Pcap, Tap, Xdp};
use ringpass_memory::{Addressing, DmaRegion, Mempool, MempoolConfig, PageSize, RegionConfig};
use ringpass_netmap::client::default_socket;
use ringpass_pci::{PciDevice, SysfsPci, VfioUser, addressing_of, open_pci};
use ringpass_port::{Address, Error, PcapConfig, Port, PortConfig, ReplaySpeed, Role};
use ringpass_vhost::{CopyModes, Vhost};
use ringpass_virtio_user::VirtioUser;

use crate::config::{Config, check_ranges};
use crate::model::Model;
use crate::ports::Ports;
use crate::sandbox::{Needs, connector};
use crate::{cards, drivers};

/// Opens the ports at these addresses, whose form [`Address`] describes. All packets come from one pool, because memory to which
/// one card writes is also read by the others.
///
/// ```
/// use ringpass::{Config, Port};
///
/// let ports = ringpass::open(["model:null", "null"], &Config::default())?;
/// assert_eq!(ports[0].name(), "model:null");
/// # Ok::<(), ringpass::Error>(())
/// ```
///
/// # Errors
/// If an address is malformed, a device is missing, in use or not permitted, no driver supports it, or there is too little
/// memory. Nothing stays open then.
pub fn open<A: AsRef<str>>(addresses: impl IntoIterator<Item = A>, config: &Config) -> Result<Ports, Error> {
    open_all(addresses.into_iter().map(|address| (address, config.port)), config)
}

/// Opens ports as [`open`] does, each with a configuration of its own.
///
/// # Errors
/// The same as those of [`open`].
pub fn open_all<A: AsRef<str>>(
    addresses: impl IntoIterator<Item = (A, PortConfig)>,
    config: &Config,
) -> Result<Ports, Error> {
    let parse = |(address, port_config): (A, PortConfig)| Ok((address.as_ref().parse()?, port_config));
    let (parsed, port_configs): (Vec<Address>, Vec<PortConfig>) =
        addresses.into_iter().map(parse).collect::<Result<Vec<_>, Error>>()?.into_iter().unzip();
    if parsed.is_empty() {
        return Err(Error::Config("no port to open; name at least one, such as tap:a or 0000:01:00.0".into()));
    }
    port_configs.iter().chain([&config.port]).try_for_each(check_ranges)?;
    check_cards(&parsed, config)?;
    if may_be_ordinary(&parsed) {
        on_any_pages(config, |config| open_parsed(&parsed, &port_configs, config))
    } else {
        open_parsed(&parsed, &port_configs, config)
    }
}

/// Opens what needs no huge pages; on ordinary ones if another process has taken huge pages since the pool found enough.
pub fn on_any_pages<T>(config: &Config, open: impl Fn(&Config) -> Result<T, Error>) -> Result<T, Error> {
    match open(config) {
        Err(error @ Error::NoHugePages(_)) if config.hugepages.is_none() => {
            config.notices.send(&format!("ordinary pages are used: {}", why_ordinary(&error)));
            open(&Config { hugepages: Some(PageSize::Ordinary), ..config.clone() })
        }
        result => result,
    }
}

fn open_parsed(addresses: &[Address], port_configs: &[PortConfig], config: &Config) -> Result<Ports, Error> {
    let pool = pool(port_configs, addresses, config)?;
    let mut needs = Needs::new(config.user);
    let open = |(address, port_config)| open_address(address, port_config, &pool, config, &mut needs);
    let ports = addresses.iter().zip(port_configs).map(open).collect::<Result<_, _>>()?;
    Ok(Ports::new(ports, pool, needs))
}

/// Returns whether no card needs the physical addresses that only huge pages have.
fn may_be_ordinary(addresses: &[Address]) -> bool {
    addressing_card(addresses).is_none_or(|card| addressing_of(card) == Addressing::Virtual)
}

/// Fails if one of the cards may not be opened. Opening a card checks that too, but here nothing has been taken or created
/// yet.
pub fn check_cards(addresses: &[Address], config: &Config) -> Result<(), Error> {
    addresses.iter().filter_map(card).try_for_each(|pci| check_card(pci, config))
}

/// Returns the card whose addressing decides for the pool: one that uses physical addresses if there is one,
/// because the others are given those as well, else any card.
pub fn addressing_card(addresses: &[Address]) -> Option<&str> {
    addresses.iter().filter_map(card).min_by_key(|pci| addressing_of(pci) == Addressing::Virtual)
}

/// Creates a pool for ports at these addresses, with these configurations. It uses huge pages unless `config` forbids them; if too few are free, it
/// says so and uses ordinary ones. For a real card the memory is on the card's NUMA node and has addresses that the card
/// understands.
pub fn pool(ports: &[PortConfig], addresses: &[Address], config: &Config) -> Result<Mempool, Error> {
    let own: usize = ports.iter().map(|port| buffers(port, config.batch)).sum();
    let buffers = own + config.room * buffers(&config.port, config.batch);
    let is_xdp = addresses.iter().any(|address| matches!(innermost(address), Address::Xdp(_)));
    with_page_fallback(ports, addressing_card(addresses), config, |region| {
        let mut pool = MempoolConfig { buffers, region: *region, ..Default::default() };
        if is_xdp {
            pool.size = Xdp::buffer_size(region.pages);
        }
        Ok(Mempool::new(&pool)?)
    })
}

/// Returns how many buffers fill all rings of a port, with some in bursts of `batch` packets and in caches.
pub fn buffers(port: &PortConfig, batch: usize) -> usize {
    // Frames in several buffers need more buffers at a time.
    let chained = if port.offloads.tso || port.mtu > 1500 { 40 * batch } else { 0 };
    port.queues * (port.rx_ring + port.tx_ring + 1024 + chained)
}

/// Creates memory for the packets of ports with `make`, on the pages that [`pool`] describes.
pub fn with_page_fallback<T>(
    ports: &[PortConfig],
    card: Option<&str>,
    config: &Config,
    make: impl Fn(&RegionConfig) -> Result<T, Error>,
) -> Result<T, Error> {
    let addressing = card.map_or(Addressing::Virtual, addressing_of);
    let numa_node = card.and_then(SysfsPci::numa_node_of);
    let make = |pages| {
        let region = RegionConfig { pages, addressing, numa_node };
        let made = make(&region)?;
        // The cards' rings are allocated later on the same pages. A trial allocation shows now whether there
        // are too few.
        let rings = |port: &PortConfig| port.queues * (port.rx_ring.max(port.tx_ring) * 2 * 16 + 64);
        let room = ports.iter().map(|port| DmaRegion::new(rings(port), &region)).collect::<Result<Vec<_>, _>>();
        Ok::<T, Error>(room.map(|_| made)?)
    };
    match make(config.hugepages.unwrap_or(PageSize::Huge2M)) {
        Err(error) if config.hugepages.is_none() && addressing == Addressing::Virtual => {
            config.notices.send(&format!("ordinary pages are used: {}", why_ordinary(&error)));
            make(PageSize::Ordinary)
        }
        result => result,
    }
}

/// Returns why there are no huge pages, shorter than the error, which is for those who asked for them.
fn why_ordinary(error: &Error) -> String {
    match error {
        Error::NoHugePages(ringpass_memory::Error::HugePages { size, need, free, .. }) => {
            let size = size.bytes() >> 20;
            format!("{need} huge pages of {size} MiB are needed, {free} are free (see 'ringpass doctor')")
        }
        other => other.to_string(),
    }
}

/// Returns whether the driver of a port accepts packets whose buffers have no headroom.
pub fn works_without_headroom(address: &Address) -> bool {
    match address {
        Address::Pci(pci) => SysfsPci::identify(pci).is_ok_and(drivers::works_without_headroom),
        Address::Model(model, _) => Model::works_without_headroom(model),
        _ => false,
    }
}

/// Returns the PCI address of the real card behind an address, if there is one.
fn card(address: &Address) -> Option<&str> {
    match innermost(address) {
        Address::Pci(pci) => Some(pci),
        _ => None,
    }
}

/// Returns the address of the port that decorators are around.
fn innermost(mut address: &Address) -> &Address {
    while let Address::Capture(_, inner) | Address::Faults(_, inner) = address {
        address = inner;
    }
    address
}

/// Opens one port with packets from `pool`, and adds what it needs of a sandbox to `needs`.
pub fn open_address(
    address: &Address,
    port_config: &PortConfig,
    pool: &Mempool,
    config: &Config,
    needs: &mut Needs,
) -> Result<Box<dyn Port>, Error> {
    open_with_wire(address, port_config, (pool, pool), config, needs)
}

/// Opens one port; see [`open_address`]. A model's wire has a pool of its own, the second.
pub fn open_with_wire(
    address: &Address,
    port_config: &PortConfig,
    (pool, wires): (&Mempool, &Mempool),
    config: &Config,
    needs: &mut Needs,
) -> Result<Box<dyn Port>, Error> {
    needs.rejoin |= port_config.rejoin && matches!(address, Address::Tap(..) | Address::Packet(..));
    needs.sessions |= matches!(address, Address::Vhost(..) | Address::VirtioUser(..));
    let mut open_inner = |inner: &Address| open_address(inner, port_config, pool, config, needs);
    Ok(match address {
        Address::Pci(pci) => open_card(pci, port_config, pool, config)?,
        Address::Model(model, wire) => {
            if let Address::Pcap(PcapConfig { input: Some(_), speed: ReplaySpeed::Max, .. }) = **wire {
                let why = "a card drops frames that come faster than they are taken; add speed=recorded";
                config.notices.send(&format!("{address}: {why}"));
            }
            // A wire carries frames without offloads, and ends with its card.
            let (offloads, spread) = Default::default();
            let bare = PortConfig { queues: 1, offloads, spread, rejoin: false, ..*port_config };
            let wire = open_wire(wire, &bare, wires, config, needs)?;
            Box::new(Model::open(&address.to_string(), model, wire, (port_config, pool), config.idle())?)
        }
        Address::VfioUser(path) => {
            // A netmap port's memory is served next to the port's own socket.
            let mut memory = path.as_os_str().to_owned();
            memory.push(".mem");
            let find = |_| Ok(VfioUser::open(Path::new(&memory))? as Arc<dyn PciDevice>);
            drivers::open_with_memory(VfioUser::open(path)?, &find, &address.to_string(), port_config, pool)?
        }
        Address::Vhost(vhost) => {
            prepare_connecting(&vhost.path, vhost.role, config, needs)?;
            Box::new(Vhost::open(vhost, port_config, pool, CopyModes::default())?)
        }
        Address::VirtioUser(card) => {
            prepare_connecting(&card.path, card.role, config, needs)?;
            Box::new(VirtioUser::open(&address.to_string(), card, port_config, pool)?)
        }
        Address::Netmap(name) => {
            let socket = default_socket()?;
            ringpass_netmap::open(name, &socket, port_config, pool)?
        }
        Address::Tap(name) => Box::new(Tap::open(name, port_config, pool)?),
        Address::Packet(name) => Box::new(PacketSocket::open(name, port_config, pool)?),
        Address::Xdp(xdp) => Box::new(Xdp::open(xdp, port_config, pool)?),
        Address::Pcap(pcap) => Box::new(Pcap::open(pcap, port_config, pool)?),
        Address::Null => Box::new(Null::open(port_config)),
        Address::Capture(file, inner) => Box::new(Capture::wrap(open_inner(inner)?, file)?),
        Address::Faults(faults, inner) => Box::new(Faults::wrap(open_inner(inner)?, *faults, pool)),
    })
}

/// Opens the port at the other end of a model's wire. Refuses ports that send by DMA: the model's frames are in
/// a memory of its own, which is not mapped for such a device.
pub fn open_wire(
    address: &Address,
    port_config: &PortConfig,
    pool: &Mempool,
    config: &Config,
    needs: &mut Needs,
) -> Result<Box<dyn Port>, Error> {
    let mut port = address;
    while let Address::Capture(_, inner) | Address::Faults(_, inner) = port {
        port = inner;
    }
    if let Address::Pci(_) | Address::VfioUser(_) | Address::VirtioUser(_) | Address::Model(..) = port {
        return Err(Error::Address(format!(
            "{address} cannot be at the far end of a model's wire, as its device could not read the model's memory; give the model a \
             TAP, and `ringpass fwd` between that and {address}"
        )));
    }
    open_address(address, port_config, pool, config, needs)
}

/// Starts the connector for a client socket: the port may have to reconnect while it is in the sandbox.
fn prepare_connecting(path: &Path, role: Role, config: &Config, needs: &mut Needs) -> Result<(), Error> {
    match role {
        Role::Connect => connector::start(path, config.sandbox, config.connector.as_deref(), needs),
        Role::Listen => Ok(()),
    }
}

/// Opens a real card. Every address that names a card ends here, so that none is taken from the kernel without
/// permission.
fn open_card(pci: &str, port_config: &PortConfig, pool: &Mempool, config: &Config) -> Result<Box<dyn Port>, Error> {
    check_card(pci, config)?;
    drivers::open_with_memory(open_pci(pci)?, &ringpass_ptnet::driver::find_memory, pci, port_config, pool)
}

/// Checks a real card. Fails if no driver supports it, or if the kernel uses it and `--take-over` does not name
/// it.
fn check_card(pci: &str, config: &Config) -> Result<(), Error> {
    let id = SysfsPci::identify(pci)?;
    if drivers::supports(id).is_none() {
        let what = cards::describe(pci, id);
        let families = drivers::FAMILIES;
        return Err(Error::NoDriver(format!("{pci}: no driver for this {what}; Ringpass drives {families}")));
    }
    let taken = config.take_over.iter().any(|named| named.parse().is_ok_and(|named| Address::Pci(pci.into()) == named));
    if let Some(why) = cards::in_use(pci).filter(|_| !taken) {
        return Err(Error::Busy(format!("{pci} is in use: {why}; to take it all the same: --take-over {pci}")));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The pool has room for the rings of all queues, also where ports differ from the default.
    #[test]
    fn ports_have_the_queues_and_rings_that_each_asks_for() {
        let port = PortConfig { queues: 4, ..Default::default() };
        let config = Config { port, hugepages: Some(PageSize::Ordinary), ..Default::default() };
        for (queues, ring) in [([1, 1], 64), ([1, 8], 512), ([4, 4], 4096)] {
            let asked =
                queues.map(|queues| ("model:null", PortConfig { queues, rx_ring: ring, tx_ring: ring, ..port }));
            let mut ports = open_all(asked, &config).expect("software cards");
            let rings = queues.iter().sum::<usize>() * 2 * ring;
            assert!(ports.pool().capacity() > rings, "{queues:?}");
            let taken = ports.take_queues();
            assert_eq!(taken.iter().map(Vec::len).collect::<Vec<_>>(), queues);
            drop(taken);
            ports.close().expect("all buffers come back");
        }
    }
}
