//! A parameter of netmap's kernel module, which some programs read from its file.

use std::io::{Seek, Write};
use std::os::fd::OwnedFd;

use netmap::protocol::Request;
use netmap::request::Kind;
use rustix::fs::{MemfdFlags, memfd_create};
use rustix::io::Errno;

use crate::open::Open;

/// File with the bytes of a buffer, as text.
pub const BUFFER_SIZE: &std::ffi::CStr = c"/sys/module/netmap/parameters/buf_size";

/// Returns a file with that text, for the buffers of the common memory.
pub fn buffer_size(close_on_exec: bool) -> Result<OwnedFd, Errno> {
    let (open, _descriptor) = Open::new(true)?;
    let reply = open.ask(&Request::new(Kind::PoolsInfoGet, "", &[])).map_err(|refusal| refusal.errno)?;
    // Field `nr_buf_pool_objsize` of netmap's reply.
    let size = u32::from_le_bytes(reply.body[60..64].try_into().expect("four bytes"));
    let flags = if close_on_exec { MemfdFlags::CLOEXEC } else { MemfdFlags::empty() };
    let mut file = std::fs::File::from(memfd_create(c"buf_size", flags)?);
    let written = file.write_all(format!("{size}\n").as_bytes()).and_then(|()| file.rewind());
    written.map_err(|_| Errno::NOMEM)?;
    Ok(file.into())
}
