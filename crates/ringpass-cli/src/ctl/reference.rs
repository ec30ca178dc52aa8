//! The page of the documentation on the control protocol, made from the protocol's types.

use std::fmt::Write;

use ringpass::control::{Greeting, Request, Status};
use schemars::schema_for;
use serde_json::Value;

use crate::docs_page;
use crate::schema_keys::{self, resolve};

const INTRODUCTION: &str = "# The control protocol

What `ringpass ctl`, `ringpass top` and the libraries for Rust and Python speak at the sockets of `[control]` and `--control`, for programs in other languages. This
page is made from the program's own types. [The service](service.md#looking-at-it) shows the use of it.

A unix stream socket; each side sends lines of JSON of at most 64 KiB (answers may be longer). The program begins with a greeting. A client sends requests, each an
object with the key `request`, and gets an answer to each, in order: `{\"ok\":…}`, or `{\"error\":\"…\"}` with the cause in a line. An `id` in a request comes back in its answer.

    ← {\"protocol\":1,\"program\":\"ringpass run\",\"version\":\"0.1.0\",\"changes\":true}
    → {\"id\":1,\"request\":\"status\"}
    ← {\"id\":1,\"ok\":{\"seconds\":12.5,\"ports\":[{\"name\":\"wire\",…}],…}}

A client that sends no request, leaves a line unfinished, or does not read its answers, for 10 seconds loses its connection. Up to 32 clients of a socket are served. Clients of a socket
that is for looking only get an error where a request changes something.
";

const EVENTS: &str = "
## Events

After the request `events`, lines with the key `event` come between the answers. Those for which a client has no room are counted, and `lost` tells how many.

| event | further keys | |
|---|---|---|
| `link` | `port`, `up` | the link of a port is up, or down |
| `gone` | `port`, `why` | what was behind a port has disappeared |
| `learnt` | `mac`, `vlan`, `port`, `switch` | a station is at another port than before, or is new |
| `added`, `removed`, `set`, `capture` | `port`; `added` has `switch` too | a client has changed something |
| `log` | as in `--log json` | what goes to standard error |
| `lost` | `count` | events for which there was no room |
";

/// Returns the page, in Markdown.
fn page() -> String {
    let mut page = String::from(INTRODUCTION);
    let greeting = schema_for!(Greeting);
    let _ = writeln!(page, "\n## Greeting\n");
    schema_keys::write(&mut page, &schema_keys::keys(greeting.as_value(), greeting.as_value()));
    let _ = writeln!(page, "\n## Requests");
    let requests = schema_for!(Request);
    let root = requests.as_value();
    for request in root["oneOf"].as_array().into_iter().flatten() {
        let name = request["properties"]["request"]["const"].as_str().unwrap_or_default();
        let text = plain(request["description"].as_str().unwrap_or_default());
        let _ = writeln!(page, "\n### `{name}`\n\n{text}");
        let keys: Vec<_> = schema_keys::keys(root, request).into_iter().filter(|key| key.name != "request").collect();
        if !keys.is_empty() {
            page.push('\n');
            schema_keys::write(&mut page, &keys);
        }
    }
    page.push_str(EVENTS);
    let _ = writeln!(page, "\n## Status");
    let status = schema_for!(Status);
    let root = status.as_value();
    describe(&mut page, root, "the answer to `status`", root);
    let parts = [
        ("ports", "an entry of `ports`"),
        ("switches", "an entry of `switches`"),
        ("workers", "an entry of `workers`"),
    ];
    for (key, what) in parts {
        describe(&mut page, root, what, resolve(root, &root["properties"][key]["items"]));
    }
    let port = resolve(root, &root["properties"]["ports"]["items"]);
    for (key, what) in [("queues", "an entry of `queues` of a port"), ("rings", "an entry of `rings` of a port")] {
        describe(&mut page, root, what, resolve(root, &port["properties"][key]["items"]));
    }
    page
}

/// Adds the keys of an object.
fn describe(page: &mut String, root: &Value, what: &str, object: &Value) {
    let _ = writeln!(page, "\n### {}{}\n", what[..1].to_uppercase(), &what[1..]);
    let mut keys = schema_keys::keys(root, object);
    keys.iter_mut().for_each(|key| key.text = plain(&key.text));
    schema_keys::write(page, &keys);
}

/// Returns a doc comment without what is for readers of Rust: links to items, and breaks of lines.
fn plain(text: &str) -> String {
    let mut plain = String::new();
    let mut rest = text;
    while let Some((before, link)) = rest.split_once("[`") {
        plain.push_str(before);
        let (name, after) = link.split_once("`]").unwrap_or((link, ""));
        let name = name.rsplit("::").next().unwrap_or(name);
        let _ = write!(plain, "`{name}`");
        // The target of a link with one.
        rest = after.strip_prefix('(').and_then(|target| target.split_once(')')).map_or(after, |(_, after)| after);
    }
    (plain + rest).replace('\n', " ")
}

#[test]
fn the_page_in_the_documentation_is_up_to_date() {
    let page = page();
    docs_page::check("control-protocol.md", &page);
    for part in ["### `capture`", "`posted`", "`rx_packets`", "### `step`", "| `buffers_in_use` | number"] {
        assert!(page.contains(part), "no {part}");
    }
}
