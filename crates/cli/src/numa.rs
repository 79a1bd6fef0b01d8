//! The NUMA nodes of the machine: which memory is near which processors.

use std::fs;
use std::path::Path;

use serde::Serialize;

/// A node's memory, in bytes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct Node {
    pub(crate) node: u32,
    pub(crate) total: u64,
    pub(crate) free: u64,
}

/// The nodes that the system tells of, by number.
pub(crate) fn nodes() -> Vec<Node> {
    nodes_in(Path::new("/sys/devices/system/node"))
}

fn nodes_in(folder: &Path) -> Vec<Node> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let mut nodes: Vec<Node> = entries
        .filter_map(|entry| {
            let node = entry.file_name().to_str()?.strip_prefix("node")?.parse().ok()?;
            let text = fs::read_to_string(entry.path().join("meminfo")).ok()?;
            let (total, free) = (bytes(&text, "MemTotal:")?, bytes(&text, "MemFree:")?);
            Some(Node { node, total, free })
        })
        .collect();
    nodes.sort_unstable_by_key(|node| node.node);
    nodes
}

/// The figure behind a name in `Node 0 MemTotal:  65691484 kB`.
fn bytes(text: &str, name: &str) -> Option<u64> {
    let mut words = text.split_whitespace().skip_while(|word| *word != name).skip(1);
    let kibibytes: u64 = words.next()?.parse().ok()?;
    kibibytes.checked_mul(1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nodes_are_listed_by_number_with_their_memory() {
        let dir = tempfile::tempdir().unwrap();
        for node in [10, 2] {
            let folder = dir.path().join(format!("node{node}"));
            fs::create_dir(&folder).unwrap();
            let text = format!("Node {node} MemTotal:       {node}00 kB\nNode {node} MemFree: 7 kB\n");
            fs::write(folder.join("meminfo"), text).unwrap();
        }
        fs::write(dir.path().join("online"), "2,10").unwrap();
        let of = |node, total| Node { node, total, free: 7 << 10 };
        assert_eq!(nodes_in(dir.path()), [of(2, 200 << 10), of(10, 1000 << 10)]);
        assert_eq!(nodes_in(&dir.path().join("none")), []);
    }
}
