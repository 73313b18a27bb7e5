//! Tells network file systems, where SQLite's locks and its shared memory do not reach the other machine.

use std::path::Path;

/// File systems that several machines can have mounted. Those that only cross a virtual machine's border (9p, virtiofs) are not among
/// them: inside one guest they serve.
const NETWORK: &[&str] = &[
    "nfs",
    "nfs4",
    "cifs",
    "smb3",
    "smbfs",
    "afs",
    "ceph",
    "lustre",
    "gfs2",
    "ocfs2",
    "glusterfs",
    "fuse.glusterfs",
    "fuse.sshfs",
    "fuse.cephfs",
    "ncpfs",
    "coda",
];

/// The kind of the network file system that the folder is on, as far as this system tells.
pub(crate) fn network_kind(folder: &Path) -> Option<String> {
    let table = std::fs::read_to_string("/proc/self/mountinfo").ok()?;
    let folder = folder.canonicalize().ok()?;
    let kind = kind_of(&table, &folder)?;
    NETWORK.contains(&kind).then(|| kind.to_owned())
}

/// The kind of the last, deepest mount that the folder is below.
fn kind_of<'t>(table: &'t str, folder: &Path) -> Option<&'t str> {
    let mounts = table.lines().filter_map(|line| {
        // "36 35 98:0 /root /mount/point options … - type source options"
        let point = line.split(' ').nth(4)?.replace("\\040", " ");
        let kind = line.split_once(" - ")?.1.split(' ').next()?;
        folder.starts_with(&point).then(|| (Path::new(&point).components().count(), kind))
    });
    mounts.max_by_key(|(depth, _)| *depth).map(|(_, kind)| kind)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_deepest_and_last_mount_counts() {
        let table = "22 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw\n\
                     40 22 0:5 / /data rw master:2 - nfs4 host:/data rw\n\
                     41 40 8:2 / /data/local rw - xfs /dev/sdb rw\n\
                     42 22 0:6 / /with\\040space rw - cifs //host/share rw\n\
                     43 22 0:7 / /twice rw - ext4 /dev/sdc rw\n\
                     44 43 0:8 / /twice rw - nfs host:/twice rw";
        for (folder, kind) in [
            ("/", "ext4"),
            ("/database", "ext4"),
            ("/data", "nfs4"),
            ("/data/x/y", "nfs4"),
            ("/data/local/x", "xfs"),
            ("/with space/x", "cifs"),
            ("/twice", "nfs"),
        ] {
            assert_eq!(kind_of(table, Path::new(folder)), Some(kind), "{folder}");
        }
        assert_eq!(kind_of("damaged", Path::new("/")), None);
    }

    #[test]
    fn this_machines_temporary_folder_is_fit() {
        assert_eq!(network_kind(&std::env::temp_dir()), None);
    }
}
