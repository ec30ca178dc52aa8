//! Requests of HTTP/1.1 (RFC 9112), as far as scrapers of metrics send them: each gets an answer, then the connection ends.

use super::MetricsFormat;

/// Most headers of a request.
const MAX_HEADERS: usize = 64;

/// What has arrived of a request.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Arrived {
    /// Not all of it.
    Part,
    /// A request of this many bytes for the metrics in this format.
    Metrics(usize, MetricsFormat),
    /// Something else, with the answer to it.
    Other(Vec<u8>),
}

/// Looks at the bytes that have arrived.
pub(super) fn look(bytes: &[u8]) -> Arrived {
    let mut headers = [httparse::EMPTY_HEADER; MAX_HEADERS];
    let mut request = httparse::Request::new(&mut headers);
    match request.parse(bytes) {
        Ok(httparse::Status::Partial) => Arrived::Part,
        Ok(httparse::Status::Complete(len)) => match (request.method, request.path) {
            (Some("GET"), Some("/metrics")) => {
                let accepts = |header: &&httparse::Header<'_>| {
                    let value = String::from_utf8_lossy(header.value);
                    header.name.eq_ignore_ascii_case("accept") && value.contains("application/openmetrics-text")
                };
                let open = request.headers.iter().find(accepts).is_some();
                Arrived::Metrics(len, if open { MetricsFormat::OpenMetrics } else { MetricsFormat::Prometheus })
            }
            (Some("GET"), _) => Arrived::Other(answer("404 Not Found", "text/plain", "the metrics are at /metrics\n")),
            _ => Arrived::Other(answer("405 Method Not Allowed", "text/plain", "only GET is understood\n")),
        },
        Err(_) => Arrived::Other(answer("400 Bad Request", "text/plain", "this is not HTTP\n")),
    }
}

/// Returns the answer with metrics, or why there are none.
pub(super) fn metrics(text: Result<&str, &str>, format: MetricsFormat) -> Vec<u8> {
    // OpenMetrics 1.0, "Protocol Negotiation"; Prometheus, "Exposition formats".
    let kind = match format {
        MetricsFormat::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
        MetricsFormat::Prometheus => "text/plain; version=0.0.4; charset=utf-8",
    };
    match text {
        Ok(text) => answer("200 OK", kind, text),
        Err(why) => answer("500 Internal Server Error", "text/plain", why),
    }
}

fn answer(status: &str, kind: &str, body: &str) -> Vec<u8> {
    let len = body.len();
    format!("HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {len}\r\nConnection: close\r\n\r\n{body}")
        .into_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_told_apart() {
        let get = b"GET /metrics HTTP/1.1\r\nHost: a\r\nAccept: */*\r\n\r\n";
        assert_eq!(look(get), Arrived::Metrics(get.len(), MetricsFormat::Prometheus));
        let open = b"GET /metrics HTTP/1.1\r\naccept: application/openmetrics-text;version=1.0.0,*/*;q=0.1\r\n\r\n";
        assert_eq!(look(open), Arrived::Metrics(open.len(), MetricsFormat::OpenMetrics));
        (0..get.len()).for_each(|len| assert_eq!(look(&get[..len]), Arrived::Part, "{len}"));
        let status = |request: &str| match look(request.as_bytes()) {
            Arrived::Other(answer) => String::from_utf8(answer).expect("text").lines().next().map(str::to_owned),
            _ => None,
        };
        assert_eq!(status("GET / HTTP/1.1\r\n\r\n").as_deref(), Some("HTTP/1.1 404 Not Found"));
        assert_eq!(status("POST /metrics HTTP/1.1\r\n\r\n").as_deref(), Some("HTTP/1.1 405 Method Not Allowed"));
        assert_eq!(status("\0\0").as_deref(), Some("HTTP/1.1 400 Bad Request"));
        let many = format!("GET /metrics HTTP/1.1\r\n{}\r\n", "a: b\r\n".repeat(MAX_HEADERS + 1));
        assert_eq!(status(&many).as_deref(), Some("HTTP/1.1 400 Bad Request"));
    }
}
