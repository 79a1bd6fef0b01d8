//! Names of users.

use std::collections::HashMap;
use std::sync::OnceLock;

/// The user's name, as `/etc/passwd` has it; its number where that knows none.
pub(crate) fn name_of_user(number: u32) -> String {
    static NAMES: OnceLock<HashMap<u32, String>> = OnceLock::new();
    let names = NAMES.get_or_init(|| read(&std::fs::read_to_string("/etc/passwd").unwrap_or_default()));
    names.get(&number).cloned().unwrap_or_else(|| number.to_string())
}

fn read(passwd: &str) -> HashMap<u32, String> {
    let user = |line: &str| {
        let mut fields = line.split(':');
        let (name, number) = (fields.next()?, fields.nth(1)?);
        Some((number.parse().ok()?, name.to_owned()))
    };
    // The first line of a number counts, as for the system.
    passwd.lines().rev().filter_map(user).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn users_are_named_where_they_are_known() {
        let names =
            read("root:x:0:0:root:/root:/bin/sh\nother:x:0:0::/:/bin/sh\nbob:x:1000:1000::/:\nbroken\n");
        assert_eq!((names[&0].as_str(), names[&1000].as_str(), names.len()), ("root", "bob", 2));
        assert_eq!(name_of_user(4_000_000_000), "4000000000");
    }
}
