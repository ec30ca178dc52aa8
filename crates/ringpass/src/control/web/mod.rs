//! The page on which rings move: what browsers ask for, and what they get. One page, without anything from elsewhere, and a stream of
//! [server-sent events](https://html.spec.whatwg.org/multipage/server-sent-events.html) for each browser that shows it.
//!
//! The page says nothing to those who were not asked for: it is served at loopback addresses only; a request for another host, as a
//! page of somebody else's causes whose name leads here (DNS rebinding), is refused, and so is one from another origin.

mod pace;

use std::net::SocketAddr;
use std::str::FromStr;

pub(super) use pace::Pace;
use ringpass_port::Error;
use serde_json::{Value, json};

use super::StepOrder;
use super::http::{HttpRequest, TEXT, answer, head};

const PAGE: &str = include_str!("page.html");

/// Most stations that the page shows.
const MOST_STATIONS: usize = 500;

/// Where the page is served, and what may be done on it.
///
/// Parsed from `ADDRESS:PORT`, with `,step` behind it if software cards may be stopped and stepped. The address is a loopback address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WebPlace {
    /// Address and port; port 0 stands for one that is free.
    pub address: SocketAddr,
    /// Whether the page may stop software cards and let them handle one descriptor at a time.
    pub steps: bool,
}

impl FromStr for WebPlace {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (address, steps) = text.strip_suffix(",step").map_or((text, false), |address| (address, true));
        let address: SocketAddr =
            address.parse().map_err(|_| "write an address and a port, such as 127.0.0.1:8080".to_owned())?;
        if !address.ip().is_loopback() {
            return Err(format!(
                "{} is no loopback address, and the page knows no users; take 127.0.0.1 and reach it by 'ssh -L'",
                address.ip()
            ));
        }
        Ok(Self { address, steps })
    }
}

impl WebPlace {
    /// Returns an error at this place.
    pub(super) fn wrong(&self, error: &std::io::Error) -> Error {
        Error::Config(format!("the page at {}: {error}; take another port, or 0 for any", self.address))
    }

    /// Finds out what a browser asks for.
    pub(super) fn ask(&self, request: &HttpRequest) -> Asked {
        let refused = |status, why| Asked::Answer(answer(status, TEXT, why));
        let Self { address, steps } = self;
        let ip = match address {
            SocketAddr::V4(address) => address.ip().to_string(),
            SocketAddr::V6(address) => format!("[{}]", address.ip()),
        };
        // Of any port: the page may be reached by another one (ssh -L).
        let is_port = |port: &str| port.strip_prefix(':').is_some_and(|port| port.parse::<u16>().is_ok());
        let is_own_host = [&ip[..], "localhost", "127.0.0.1", "[::1]"]
            .iter()
            .any(|host| request.host.strip_prefix(host).is_some_and(|rest| rest.is_empty() || is_port(rest)));
        if !is_own_host {
            return refused("421 Misdirected Request", "this is not the host that you ask for; write localhost\n");
        }
        if request.fetch_site.as_ref().is_some_and(|site| !["same-origin", "none"].contains(&&site[..])) {
            return refused("403 Forbidden", "another page may not ask here\n");
        }
        let is_own = request.origin.as_ref().map(|origin| origin.strip_prefix("http://") == Some(&request.host[..]));
        if is_own == Some(false) {
            return refused("403 Forbidden", "another page may not ask here\n");
        }
        if !request.is_post {
            return match &request.path[..] {
                "/" => Asked::Answer(page()),
                "/events" => Asked::Events(head("200 OK", "text/event-stream", "Cache-Control: no-store\r\n")),
                _ => refused("404 Not Found", "the page is at /\n"),
            };
        }
        let order = match &request.path[..] {
            "/stop" => StepOrder::Stop,
            "/step" => StepOrder::Step,
            "/run" => StepOrder::Run,
            _ => return refused("404 Not Found", "there are /stop, /step and /run\n"),
        };
        if is_own.is_none() {
            return refused("403 Forbidden", "say where you come from, in the header Origin\n");
        }
        if !steps {
            return refused(
                "403 Forbidden",
                "this page is for looking only; start the program with --web=ADDRESS:PORT,step\n",
            );
        }
        Asked::Order(order)
    }
}

/// What a browser asks for.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Asked {
    /// Something that is answered with this.
    Answer(Vec<u8>),
    /// Events, which begin with this.
    Events(Vec<u8>),
    /// An order to software cards.
    Order(StepOrder),
}

fn page() -> Vec<u8> {
    const POLICY: &str = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; connect-src 'self'; \
                          img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";
    let more = format!(
        "Content-Length: {}\r\nCache-Control: no-store\r\nReferrer-Policy: no-referrer\r\nContent-Security-Policy: {POLICY}\r\n",
        PAGE.len()
    );
    [&head("200 OK", "text/html; charset=utf-8", &more), PAGE.as_bytes()].concat()
}

/// Returns the answer to an order.
pub(super) fn ordered(result: Result<Value, String>) -> Vec<u8> {
    match result {
        Ok(value) => answer("200 OK", "application/json", &value.to_string()),
        Err(why) => answer("409 Conflict", TEXT, &why),
    }
}

/// Returns an event of the stream.
pub(super) fn event(name: &str, value: &Value) -> Vec<u8> {
    // JSON has no line breaks but in strings, where they are escaped.
    format!("event: {name}\ndata: {value}\n\n").into_bytes()
}

/// Returns the event with the stations of all switches: no more than the page shows.
pub(super) fn stations(stations: Value, number: u64) -> Vec<u8> {
    let mut list = match stations {
        Value::Array(list) => list,
        _ => Vec::new(),
    };
    list.truncate(MOST_STATIONS);
    event("stations", &json!({ "stations": list, "number": number }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_loopback_is_served() {
        let place: WebPlace = "127.0.0.1:8080,step".parse().expect("an address");
        assert!(place.steps && place.address.port() == 8080);
        assert!("[::1]:0".parse::<WebPlace>().is_ok_and(|place| !place.steps));
        for wrong in ["0.0.0.0:80", "192.0.2.1:80", "[::]:80", "localhost", "8080", "127.0.0.1:80,steps", ""] {
            assert!(wrong.parse::<WebPlace>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn others_get_nothing() {
        let place = WebPlace { address: "127.0.0.1:8080".parse().expect("an address"), steps: true };
        let own = HttpRequest { path: "/".into(), host: "localhost:8080".into(), ..HttpRequest::default() };
        let status = |place: &WebPlace, request: &HttpRequest| match place.ask(request) {
            Asked::Answer(answer) => String::from_utf8(answer).expect("text").get(9..12).map(str::to_owned),
            Asked::Events(_) => Some("events".into()),
            Asked::Order(_) => Some("order".into()),
        };
        let ask = |request: &HttpRequest| status(&place, request).expect("an answer");
        assert_eq!(ask(&own), "200");
        assert_eq!(
            ask(&HttpRequest { host: "127.0.0.1:8080".into(), path: "/events".into(), ..own.clone() }),
            "events"
        );
        for host in
            ["", "example.org:8080", "localhost.example.org", "127.0.0.1:8080.example.org", "localhost:", "localhost:x"]
        {
            assert_eq!(ask(&HttpRequest { host: host.into(), ..own.clone() }), "421", "{host}");
        }
        let from = |origin: Option<&str>, request: &HttpRequest| HttpRequest {
            origin: origin.map(str::to_owned),
            ..request.clone()
        };
        assert_eq!(ask(&from(Some("http://localhost:8080"), &own)), "200");
        let step = HttpRequest { is_post: true, path: "/step".into(), ..own.clone() };
        assert_eq!(ask(&from(Some("http://localhost:8080"), &step)), "order");
        for origin in
            [Some("http://example.org"), Some("null"), Some("https://localhost:8080"), Some("http://127.0.0.1:8080")]
        {
            assert_eq!([ask(&from(origin, &own)), ask(&from(origin, &step))], ["403", "403"], "{origin:?}");
        }
        assert_eq!(ask(&step), "403", "a browser says where an order comes from");
        for host in ["localhost", "localhost:9000", "[::1]:80"] {
            assert_eq!(ask(&HttpRequest { host: host.into(), ..own.clone() }), "200", "{host}");
        }
        for (site, expected) in [("same-origin", "200"), ("none", "200"), ("cross-site", "403"), ("same-site", "403")] {
            assert_eq!(ask(&HttpRequest { fetch_site: Some(site.into()), ..own.clone() }), expected, "{site}");
        }
        let looking = WebPlace { steps: false, ..place };
        assert_eq!(status(&looking, &from(Some("http://localhost:8080"), &step)).as_deref(), Some("403"));
        assert_eq!(ask(&HttpRequest { path: "/metrics".into(), ..own.clone() }), "404");
        assert_eq!(ask(&from(Some("http://localhost:8080"), &HttpRequest { path: "/".into(), ..step })), "404");
    }
}
