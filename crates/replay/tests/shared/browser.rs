//! Chromium without a window, told what to do over its [protocol](https://chromedevtools.github.io/devtools-protocol/): pages in
//! screens of any size, in light and dark. (A window of Chromium's own has 500 pixels at least.)

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use serde_json::{Value, json};

/// The arguments that every run of Chromium has, with a profile of its own in this folder.
pub(crate) fn arguments(folder: &Path) -> Vec<String> {
    let fixed = [
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--disable-quic",
        "--no-first-run",
        "--disable-background-networking",
        "--disable-component-update",
        "--disable-sync",
        "--disable-dev-shm-usage",
        "--hide-scrollbars",
    ];
    let profile = format!("--user-data-dir={}", folder.join("profile").display());
    fixed.map(str::to_owned).into_iter().chain([profile]).collect()
}

/// A screen in CSS pixels.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Screen {
    pub(crate) width: u32,
    pub(crate) height: u32,
    pub(crate) is_phone: bool,
    pub(crate) is_dark: bool,
}

/// A running Chromium with one page.
pub(crate) struct Browser {
    child: Child,
    to: ChildStdin,
    from: BufReader<ChildStdout>,
    calls: u64,
    session: Option<String>,
}

impl Browser {
    pub(crate) fn start(chromium: &Path, folder: &Path) -> Self {
        // The protocol is spoken on descriptors 3 and 4.
        let mut child = Command::new("sh")
            .args(["-c", "exec \"$0\" \"$@\" 3<&0 4>&1 </dev/null >/dev/null"])
            .arg(chromium)
            .args(arguments(folder))
            .arg("--remote-debugging-pipe")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let (to, from) = (child.stdin.take().unwrap(), BufReader::new(child.stdout.take().unwrap()));
        let mut browser = Self { child, to, from, calls: 0, session: None };
        let page = browser.call("Target.createTarget", json!({ "url": "about:blank" }));
        let page = json!({ "targetId": page["targetId"], "flatten": true });
        let session = browser.call("Target.attachToTarget", page)["sessionId"].as_str().map(str::to_owned);
        browser.session = session;
        browser.call("Page.enable", json!({}));
        browser
    }

    fn send(&mut self, method: &str, params: Value) -> u64 {
        self.calls += 1;
        let mut message = json!({ "id": self.calls, "method": method, "params": params });
        if let Some(session) = &self.session {
            message["sessionId"] = json!(session);
        }
        self.to.write_all(format!("{message}\0").as_bytes()).unwrap();
        self.calls
    }

    /// The next message that is what is looked for.
    fn until(&mut self, is_it: impl Fn(&Value) -> bool) -> Value {
        loop {
            let mut bytes = Vec::new();
            self.from.read_until(0, &mut bytes).unwrap();
            assert_eq!(bytes.pop(), Some(0), "the browser ended");
            let message: Value = serde_json::from_slice(&bytes).unwrap();
            if is_it(&message) {
                return message;
            }
        }
    }

    pub(crate) fn call(&mut self, method: &str, params: Value) -> Value {
        let id = self.send(method, params);
        let mut answer = self.until(|message| message["id"] == id);
        assert!(answer["error"].is_null(), "{method}: {answer}");
        answer["result"].take()
    }

    /// What a script's promise comes to.
    pub(crate) fn run(&mut self, script: &str) -> Value {
        let params = json!({ "expression": script, "awaitPromise": true, "returnByValue": true });
        let mut answer = self.call("Runtime.evaluate", params);
        assert!(answer["exceptionDetails"].is_null(), "{answer:#}");
        answer["result"]["value"].take()
    }

    /// Opens a file on this screen.
    pub(crate) fn open(&mut self, file: &Path, screen: Screen) {
        let Screen { width, height, is_phone, is_dark } = screen;
        let metrics = json!({ "width": width, "height": height, "deviceScaleFactor": 1, "mobile": is_phone });
        self.call("Emulation.setDeviceMetricsOverride", metrics);
        let theme = if is_dark { "dark" } else { "light" };
        let features = json!([{ "name": "prefers-color-scheme", "value": theme }]);
        self.call("Emulation.setEmulatedMedia", json!({ "features": features }));
        self.send("Page.navigate", json!({ "url": format!("file://{}", file.display()) }));
        self.until(|message| message["method"] == "Page.loadEventFired");
    }

    /// The whole page as a PNG, in base64.
    pub(crate) fn picture(&mut self) -> String {
        let params = json!({ "captureBeyondViewport": true, "format": "png" });
        self.call("Page.captureScreenshot", params)["data"].as_str().unwrap().to_owned()
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
