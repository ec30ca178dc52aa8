//! Chromium without a screen, driven by chromedriver (W3C WebDriver, by curl).

use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::{Program, run};

/// A browser with one window, which ends when this is dropped.
pub struct Browser {
    /// Command that curl is run by: none, or what enters a namespace.
    enter: Vec<String>,
    address: String,
    session: String,
    driver: Program,
}

/// What a person has set.
pub struct Look {
    /// Width of the window, in CSS pixels.
    pub width: u32,
    pub dark: bool,
}

impl Browser {
    /// Starts a browser in this process's namespaces, or by a command that enters others.
    pub fn start(enter: &[&str]) -> Self {
        let driver = Program::spawn(&[enter, &["chromedriver", "--port=0"]].concat());
        let started = || driver.line_or_eof().expect("chromedriver starts");
        let line = std::iter::repeat_with(started).find(|line| line.contains("successfully on port")).expect("a port");
        let port = line.trim_end_matches('.').rsplit(' ').next().expect("a port").to_owned();
        let enter = enter.iter().map(|word| (*word).to_owned()).collect();
        let mut browser = Self { enter, address: format!("http://127.0.0.1:{port}"), session: String::new(), driver };
        let options = json!({ "args": ["--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"] });
        let capabilities = json!({ "goog:chromeOptions": options, "goog:loggingPrefs": { "browser": "ALL" } });
        let session = browser.call("POST", "/session", &json!({ "capabilities": { "alwaysMatch": capabilities } }));
        browser.session = session["sessionId"].as_str().expect("a session").to_owned();
        browser
    }

    /// Sends a command, and returns the value of its answer.
    fn call(&self, method: &str, path: &str, body: &Value) -> Value {
        let url = format!("{}{path}", self.address);
        let body = body.to_string();
        let enter: Vec<&str> = self.enter.iter().map(String::as_str).collect();
        let curl =
            ["curl", "-sS", "--max-time", "60", "-X", method, "-H", "Content-Type: application/json", "-d", &body];
        let answer: Value = serde_json::from_str(&run(&[&enter[..], &curl, &[&url]].concat())).expect("JSON");
        assert!(answer["value"]["error"].is_null(), "{method} {path}: {}", answer["value"]);
        answer["value"].clone()
    }

    fn command(&self, method: &str, path: &str, body: &Value) -> Value {
        self.call(method, &format!("/session/{}/{path}", self.session), body)
    }

    /// Sets the size of the window and the preferred colours.
    pub fn look(&self, &Look { width, dark }: &Look) {
        let size = json!({ "width": width, "height": 900, "deviceScaleFactor": 1, "mobile": false });
        let scheme = json!({ "name": "prefers-color-scheme", "value": if dark { "dark" } else { "light" } });
        for (command, parameters) in [
            ("Emulation.setDeviceMetricsOverride", size),
            ("Emulation.setEmulatedMedia", json!({ "features": [scheme] })),
        ] {
            self.command("POST", "goog/cdp/execute", &json!({ "cmd": command, "params": parameters }));
        }
    }

    pub fn open(&self, url: &str) {
        self.command("POST", "url", &json!({ "url": url }));
    }

    /// Runs a script in the page, and returns what it returns.
    pub fn run(&self, script: &str) -> Value {
        self.command("POST", "execute/sync", &json!({ "script": script, "args": [] }))
    }

    /// Waits until a script returns something true, and returns that.
    pub fn wait(&self, what: &str, script: &str) -> Value {
        let start = Instant::now();
        loop {
            let value = self.run(script);
            if value.as_bool().unwrap_or(!value.is_null()) {
                return value;
            }
            let page = || self.run("return document.body.innerText");
            assert!(start.elapsed() < Duration::from_secs(60), "{what} has not come: {value}; the page is\n{}", page());
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// Presses keys.
    pub fn press(&self, keys: &str) {
        let each = keys.chars().flat_map(|key| ["keyDown", "keyUp"].map(|kind| json!({ "type": kind, "value": key })));
        let actions = json!([{ "type": "key", "id": "keyboard", "actions": each.collect::<Vec<_>>() }]);
        self.command("POST", "actions", &json!({ "actions": actions }));
    }

    /// Writes a picture of the whole page.
    pub fn picture(&self, file: &Path) {
        let parameters = json!({ "format": "png", "captureBeyondViewport": true });
        let command = json!({ "cmd": "Page.captureScreenshot", "params": parameters });
        let picture = self.command("POST", "goog/cdp/execute", &command);
        std::fs::write(file, picture["data"].as_str().expect("a picture")).expect("room for a picture");
        let decoded = Command::new("base64").arg("-d").arg(file).output().expect("coreutils").stdout;
        assert!(decoded.starts_with(b"\x89PNG"), "not a picture");
        std::fs::write(file, decoded).expect("room for a picture");
    }

    /// Returns what the page has written to its console since the last call: errors, what its policy has blocked, resources that were not there.
    pub fn console(&self) -> Vec<String> {
        let log = self.command("POST", "se/log", &json!({ "type": "browser" }));
        log.as_array().into_iter().flatten().map(|entry| entry["message"].to_string()).collect()
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        // Ends the browser; its driver is ended after it. A test that fails has said so.
        let url = format!("{}/session/{}", self.address, self.session);
        let mut words = self.enter.clone();
        words.extend(["curl", "-s", "--max-time", "10", "-X", "DELETE", &url].map(str::to_owned));
        let _ = Command::new(&words[0]).args(&words[1..]).output();
    }
}
