//! Requests of HTTP/1.1 (RFC 9112), as far as scrapers and browsers need them: each gets an answer, then the connection ends.

use super::MetricsFormat;

/// Most headers of a request.
const MAX_HEADERS: usize = 64;

/// What has arrived of a request.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Arrived {
    /// Not all of it.
    Part,
    /// All of it.
    Request(HttpRequest),
    /// Something else, with the answer to it.
    Other(Vec<u8>),
}

/// A request without a body.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct HttpRequest {
    /// Its length, in bytes.
    pub(super) len: usize,
    /// Whether it is a POST; a GET otherwise.
    pub(super) is_post: bool,
    pub(super) path: String,
    /// Header `Host`.
    pub(super) host: String,
    /// Header `Origin`, which browsers send with whatever may change something.
    pub(super) origin: Option<String>,
    /// Header `Sec-Fetch-Site`: from where the page comes that makes a browser ask.
    pub(super) fetch_site: Option<String>,
    /// Format of metrics that the client takes.
    pub(super) format: MetricsFormat,
}

/// Looks at the bytes that have arrived.
pub(super) fn look(bytes: &[u8]) -> Arrived {
    let mut headers = [httparse::EMPTY_HEADER; MAX_HEADERS];
    let mut parsed = httparse::Request::new(&mut headers);
    let len = match parsed.parse(bytes) {
        Ok(httparse::Status::Partial) => return Arrived::Part,
        Ok(httparse::Status::Complete(len)) => len,
        Err(_) => return Arrived::Other(answer("400 Bad Request", TEXT, "this is not HTTP\n")),
    };
    let is_post = match parsed.method {
        Some("GET") => false,
        Some("POST") => true,
        _ => return Arrived::Other(answer("405 Method Not Allowed", TEXT, "only GET and POST are understood\n")),
    };
    let path = parsed.path.unwrap_or_default().to_owned();
    let mut request = HttpRequest { len, is_post, path, format: MetricsFormat::Prometheus, ..HttpRequest::default() };
    for header in parsed.headers.iter() {
        let value = String::from_utf8_lossy(header.value);
        match &header.name.to_ascii_lowercase()[..] {
            "host" => request.host = value.into_owned(),
            "origin" => request.origin = Some(value.into_owned()),
            "sec-fetch-site" => request.fetch_site = Some(value.into_owned()),
            "accept" if value.contains("application/openmetrics-text") => request.format = MetricsFormat::OpenMetrics,
            "content-length" if value.trim() != "0" => return Arrived::Other(no_body()),
            "transfer-encoding" => return Arrived::Other(no_body()),
            _ => {}
        }
    }
    Arrived::Request(request)
}

/// Content type of plain text.
pub(super) const TEXT: &str = "text/plain; charset=utf-8";

fn no_body() -> Vec<u8> {
    answer("413 Content Too Large", TEXT, "requests here have no body\n")
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
        Err(why) => answer("500 Internal Server Error", TEXT, why),
    }
}

/// Returns an answer, after which the connection ends.
pub(super) fn answer(status: &str, kind: &str, body: &str) -> Vec<u8> {
    let len = body.len();
    let mut answer = head(status, kind, &format!("Content-Length: {len}\r\n"));
    answer.extend_from_slice(body.as_bytes());
    answer
}

/// Returns the head of an answer, with further headers that each end a line.
pub(super) fn head(status: &str, kind: &str, more: &str) -> Vec<u8> {
    format!(
        "HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nX-Content-Type-Options: nosniff\r\nConnection: close\r\n{more}\r\n"
    )
    .into_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_told_apart() {
        let get = b"GET /metrics HTTP/1.1\r\nHost: a\r\nAccept: */*\r\n\r\n";
        let request = |bytes: &[u8]| match look(bytes) {
            Arrived::Request(request) => request,
            other => panic!("{other:?}"),
        };
        let expected = HttpRequest {
            len: get.len(),
            path: "/metrics".into(),
            host: "a".into(),
            format: MetricsFormat::Prometheus,
            ..HttpRequest::default()
        };
        assert_eq!(request(get), expected);
        let open = b"GET /metrics HTTP/1.1\r\naccept: application/openmetrics-text;version=1.0.0,*/*;q=0.1\r\n\r\n";
        assert_eq!(request(open).format, MetricsFormat::OpenMetrics);
        (0..get.len()).for_each(|len| assert_eq!(look(&get[..len]), Arrived::Part, "{len}"));
        let post = request(b"POST /step HTTP/1.1\r\nHost: b\r\nOrigin: http://b\r\nContent-Length: 0\r\n\r\n");
        assert!(post.is_post && post.origin.as_deref() == Some("http://b"));
        let status = |request: &str| match look(request.as_bytes()) {
            Arrived::Other(answer) => String::from_utf8(answer).expect("text").lines().next().map(str::to_owned),
            _ => None,
        };
        assert_eq!(status("PUT /metrics HTTP/1.1\r\n\r\n").as_deref(), Some("HTTP/1.1 405 Method Not Allowed"));
        assert_eq!(status("\0\0").as_deref(), Some("HTTP/1.1 400 Bad Request"));
        for body in ["Content-Length: 5", "Content-Length: 0x", "Transfer-Encoding: chunked"] {
            let posted = format!("POST / HTTP/1.1\r\n{body}\r\n\r\n");
            assert_eq!(status(&posted).as_deref(), Some("HTTP/1.1 413 Content Too Large"), "{body}");
        }
        let many = format!("GET /metrics HTTP/1.1\r\n{}\r\n", "a: b\r\n".repeat(MAX_HEADERS + 1));
        assert_eq!(status(&many).as_deref(), Some("HTTP/1.1 400 Bad Request"));
    }
}
