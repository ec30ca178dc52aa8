//! Requests that only query: a port, a memory, the ports of switches. Their bodies are netmap's structures.

use ringpass_ipc::Credentials;
use ringpass_netmap::protocol::BODY;
use ringpass_netmap::request::{AskedMemory, PortInfo, Register};
use ringpass_netmap::{Pools, Region, Shape};
use rustix::io::Errno;

use super::COMMON_MEMORY;
use super::ports::{Ports, Registered, Requester};
use super::{RequestError, SwitchPlace};

/// Concatenates the parts of a reply's body and pads them with zeros.
fn body(parts: &[&[u8]]) -> [u8; BODY] {
    let mut body = [0; BODY];
    body.iter_mut().zip(parts.concat()).for_each(|(to, byte)| *to = byte);
    body
}

/// Returns the properties of a port, or, without a name, of a memory by its number. For a port that does not
/// exist, they are what a registration would give.
pub fn port(
    ports: &mut Ports,
    name: &str,
    asked: &[u8; BODY],
    program: Credentials,
) -> Result<[u8; BODY], RequestError> {
    let asked = PortInfo::parse(asked.first_chunk().expect("64 bytes"));
    if name.is_empty() {
        let (memory_id, region) = region(ports, asked.memory_id)?;
        // As in netmap, the numbers of rings and slots stay what the program has written.
        return Ok(body(&[&PortInfo { memory_size: region.bytes() as u64, memory_id, ..asked }.bytes()]));
    }
    let PortInfo { slots, rings, memory_id, .. } = asked;
    let asked = Register { slots, rings, memory_id, ..Register::default() };
    Ok(body(&[&described(ports, name, &asked, program)?.0.bytes()]))
}

/// Returns the properties of a port, and the pools of its memory.
fn described(
    ports: &mut Ports,
    name: &str,
    asked: &Register,
    program: Credentials,
) -> Result<(PortInfo, Pools), RequestError> {
    if asked.memory_id != 0 {
        region(ports, asked.memory_id)?;
    }
    if let Some((Shape { rings, slots, host_rings }, memory_id)) = ports.find(name)? {
        let region = region(ports, memory_id)?.1;
        let memory_size = region.bytes() as u64;
        return Ok((PortInfo { memory_size, slots, rings, host_rings, memory_id }, *region.pools()));
    }
    if let Some(described) = ports.would_have(name, asked)? {
        return Ok(described);
    }
    let mut requester = Requester { program, made: Vec::new() };
    let Registered { registration, register, pools, .. } = ports.register(name, asked, &mut requester)?;
    ports.unregister(registration);
    let Register { memory_size, slots, rings, host_rings, memory_id, .. } = register;
    Ok((PortInfo { memory_size, slots, rings, host_rings, memory_id }, pools))
}

/// Returns the pools of a memory: that of a port, or, without a name, the one with the given number. Programs must
/// name a port; the library, which reads the size of a buffer before there is one, need not.
pub fn pools(
    ports: &mut Ports,
    name: &str,
    asked: &[u8; BODY],
    program: Credentials,
) -> Result<[u8; BODY], RequestError> {
    let id = u16::from_le_bytes([asked[8], asked[9]]);
    let (id, size, pools) = if name.is_empty() {
        let (id, region) = region(ports, id)?;
        (id, region.bytes() as u64, *region.pools())
    } else {
        let (info, pools) = described(ports, name, &Register { memory_id: id, ..Register::default() }, program)?;
        (info.memory_id, info.memory_size, pools)
    };
    Ok(described_pools(id, size, pools))
}

/// Returns the pools of a memory that a program has brought along.
pub fn external(ports: &Ports, granted: &AskedMemory) -> Result<Vec<u8>, RequestError> {
    let (id, region) = region(ports, granted.id)?;
    Ok(described_pools(id, granted.size, *region.pools()).to_vec())
}

fn described_pools(id: u16, size: u64, pools: Pools) -> [u8; BODY] {
    let Pools { interfaces, ring_bytes, buffers, buffer_size } = pools;
    let pool = |offset: usize, count: u32, size: u32| {
        [&(offset as u64).to_le_bytes()[..], &[count, size].map(u32::to_le_bytes).concat()].concat()
    };
    let at = [0, pools.rings_at(), pools.buffers_at()];
    body(&[
        &size.to_le_bytes(),
        &u64::from(id).to_le_bytes(),
        &pool(at[0], interfaces, (at[1] / interfaces as usize) as u32),
        // Rings vary in length, so the pool is described as one object.
        &pool(at[1], 1, ring_bytes as u32),
        &pool(at[2], buffers, buffer_size),
    ])
}

fn region(ports: &Ports, id: u16) -> Result<(u16, &Region), RequestError> {
    let id = if id == 0 { COMMON_MEMORY } else { id };
    let none = || RequestError::new(Errno::INVAL, format!("there is no memory {id}; ask for 0, or for that of a port"));
    Ok((id, ports.region(id).ok_or_else(none)?))
}

/// Finds a port of a VALE switch: without a name, the first one at or after a given place; with a name, that port. Returns
/// its place and its name.
pub fn vale(ports: &Ports, name: &str, asked: &[u8; BODY]) -> Result<([u8; BODY], String), RequestError> {
    if !name.is_empty() && !name.starts_with("vale") {
        return Err(RequestError::new(Errno::INVAL, format!("{name} is not a port of a VALE switch")));
    }
    let switch = u16::from_le_bytes([asked[0], asked[1]]);
    let port = u32::from_le_bytes([asked[4], asked[5], asked[6], asked[7]]);
    let found = match name {
        "" => ports.switches().next(SwitchPlace { switch, port }),
        name => ports.switches().find(name).map(|place| (place, name.to_owned())),
    };
    let (SwitchPlace { switch, port }, name) = found.ok_or_else(|| {
        let why = if name.is_empty() { "no more ports of VALE switches".into() } else { format!("no port {name}") };
        RequestError::new(Errno::NOENT, why)
    })?;
    Ok((body(&[&u32::from(switch).to_le_bytes(), &port.to_le_bytes()]), name))
}
