//! The first message: the version and the capabilities of each side, as JSON text that ends with a zero byte.

use ringpass_memory::DmaMap;
use rustix::io::Errno;
use serde_json::{Map, Value, json};

use crate::MAX_FDS;
use crate::message::{Body, Fields, MAX_TRANSFER};
use crate::{Ended, Refusal, Request};

/// The supported version is 0.1. Also 0.0, which does not differ in anything that is used here.
const MAJOR: u16 = 0;
const MINOR: u16 = 1;
/// Most bytes of version data; some 250 are usual.
const MAX_DATA: usize = 4096;

fn capabilities() -> Value {
    json!({
        "max_msg_fds": MAX_FDS,
        "max_data_xfer_size": MAX_TRANSFER,
        "max_dma_maps": DmaMap::MAX,
        "pgsizes": 4096,
        "write_multiple": true,
    })
}

fn parse(data: &[u8]) -> Result<Map<String, Value>, Refusal> {
    let Some(text) = data.strip_suffix(&[0]).or(data.is_empty().then_some(data)) else {
        return Err(Refusal::invalid("version data without a zero at its end"));
    };
    if text.is_empty() {
        return Ok(Map::new());
    }
    let value = if text.len() <= MAX_DATA { serde_json::from_slice(text).ok() } else { None };
    match value {
        Some(Value::Object(mut data)) => match data.remove("capabilities") {
            Some(Value::Object(capabilities)) => Ok(capabilities),
            None => Ok(Map::new()),
            Some(_) => Err(Refusal::invalid("capabilities that are no object")),
        },
        _ => Err(Refusal::invalid("version data that is not a JSON object")),
    }
}

/// Builds the server's answer: the lower of the two minor versions, and those of its capabilities that the
/// client has named.
pub(crate) fn answer(major: u16, minor: u16, data: &[u8]) -> Result<Result<Vec<u8>, Refusal>, Ended> {
    if major != MAJOR {
        return Err(Ended::Version("speaks another version of the protocol than 0.x"));
    }
    Ok(parse(data).map(|named| {
        let mut body = Body::default();
        body.u16(MAJOR).u16(minor.min(MINOR));
        if let Value::Object(mut ours) = capabilities()
            && !data.is_empty()
        {
            ours.retain(|name, _| named.contains_key(name));
            body.bytes(json!({ "capabilities": ours }).to_string().as_bytes()).bytes(&[0]);
        }
        body.0
    }))
}

/// Builds the client's proposal.
pub(crate) fn proposal() -> Vec<u8> {
    let mut data = json!({ "capabilities": capabilities() }).to_string().into_bytes();
    data.push(0);
    Request::Version { major: MAJOR, minor: MINOR, data: &data }.to_bytes()
}

/// Limits that the client takes from the answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Limits {
    /// Most descriptors in a message to the server.
    pub fds: usize,
    /// Most bytes of data in a message.
    pub transfer: usize,
}

pub(crate) fn limits(body: &[u8]) -> Result<Limits, Refusal> {
    let mut f = Fields(body);
    let (major, minor) = (f.u16()?, f.u16()?);
    if major != MAJOR || minor > MINOR {
        return Err(Refusal::new(Errno::PROTONOSUPPORT, format!("version {major}.{minor}")));
    }
    let data = parse(f.0)?;
    let number = |name: &str, default: usize, most: usize| {
        let value = data.get(name).and_then(Value::as_u64);
        value.map_or(default, |value| (value as usize).min(most)).max(1)
    };
    // The defaults are those of the specification.
    let (fds, transfer) = (number("max_msg_fds", 1, MAX_FDS), number("max_data_xfer_size", 1 << 20, MAX_TRANSFER));
    Ok(Limits { fds, transfer: transfer.min(MAX_TRANSFER) })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answered(data: &[u8]) -> String {
        let body = answer(0, 1, data).unwrap().unwrap();
        String::from_utf8(body[4..].to_vec()).unwrap()
    }

    #[test]
    fn the_answer_names_nothing_that_was_not_proposed() {
        assert_eq!(answered(b""), "");
        assert_eq!(answered(b"{}\0"), "{\"capabilities\":{}}\0");
        let some = b"{\"capabilities\":{\"pgsizes\":4096,\"migration\":{\"pgsize\":4096}}}\0";
        assert_eq!(answered(some), "{\"capabilities\":{\"pgsizes\":4096}}\0");
        let proposal = proposal();
        let body = answer(0, 1, &proposal[4..]).unwrap().unwrap();
        assert_eq!(limits(&body).unwrap(), Limits { fds: MAX_FDS, transfer: MAX_TRANSFER });
        assert_eq!(limits(&[0; 4]).unwrap(), Limits { fds: 1, transfer: MAX_TRANSFER });
    }

    #[test]
    fn versions() {
        assert_eq!(answer(0, 0, b"").unwrap().unwrap(), [0; 4], "0.0 is answered with 0.0");
        assert_eq!(answer(0, 7, b"").unwrap().unwrap()[2..], MINOR.to_ne_bytes());
        assert!(answer(1, 0, b"").is_err());
        assert!(limits(&[1, 0, 0, 0]).is_err() && limits(&[0, 0, 2, 0]).is_err() && limits(&[0, 0]).is_err());
    }

    #[test]
    fn data_that_is_no_object_is_refused() {
        let deep = [b"{\"capabilities\":".repeat(200), b"\0".to_vec()].concat();
        let long = [b"{\"a\":\"".to_vec(), vec![b'a'; MAX_DATA], b"\"}\0".to_vec()].concat();
        for bad in [b"{}".as_slice(), b"\0\0", b"[]\0", b"{\"capabilities\":1}\0", b"\xff\0", b"{\0}\0", &deep, &long] {
            assert!(answer(0, 1, bad).unwrap().is_err(), "{}", String::from_utf8_lossy(bad));
        }
    }
}
