//! Parses the tables of TCP sockets in a network namespace, line by line. It ends no process.

use std::io::{self, BufRead};

/// Below /proc.
#[derive(Debug)]
pub(super) struct Table {
    pub(super) name: &'static str,
    /// A kernel without IPv6 has no table of its sockets.
    pub(super) may_be_absent: bool,
}

pub(super) const TABLES: [Table; 2] =
    [Table { name: "net/tcp", may_be_absent: false }, Table { name: "net/tcp6", may_be_absent: true }];

/// States in which this side has closed the connection, so that it answers nothing more: FIN_WAIT1, FIN_WAIT2, TIME_WAIT,
/// CLOSE, LAST_ACK and CLOSING of the kernel's `tcp_states.h`. An engine that crashed leaves such sockets behind.
const CLOSED: [u8; 6] = [0x04, 0x05, 0x06, 0x07, 0x09, 0x0b];

/// Whether a socket listens on one of these ports, on any address, or still has a connection there, because an engine that
/// drains may have closed its port. An error if the table does not have the kernel's format.
pub(super) fn is_any_in_use(table: impl BufRead, ports: &[u16]) -> io::Result<bool> {
    let mut lines = table.lines();
    let header = lines.next().transpose()?.unwrap_or_default();
    if !header.contains("local_address") {
        return Err(not_a_table("no header"));
    }
    for line in lines {
        let line = line?;
        let (port, state) = socket(&line).ok_or_else(|| not_a_table(&line))?;
        if ports.contains(&port) && !CLOSED.contains(&state) {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Local port and state.
fn socket(line: &str) -> Option<(u16, u8)> {
    // `0: 0100007F:1F40 00000000:0000 0A …`
    let mut fields = line.split_whitespace().skip(1);
    let (local, _remote, state) = (fields.next()?, fields.next()?, fields.next()?);
    let (_address, port) = local.rsplit_once(':')?;
    Some((u16::from_str_radix(port, 16).ok()?, u8::from_str_radix(state, 16).ok()?))
}

fn not_a_table(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("not a table of sockets: {what:?}"))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const HEADER: &str =
        "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid\n";

    fn in_use(lines: &str) -> Option<bool> {
        is_any_in_use(format!("{HEADER}{lines}").as_bytes(), &[8000, 8001]).ok()
    }

    #[test]
    fn a_port_is_in_use_whatever_the_address_it_listens_on() {
        for listens in [
            "   0: 00000000:1F40 00000000:0000 0A 00000000:00000000 00:00000000 00000000 0 0 1 1\n",
            "   7: 0100007F:1F41 00000000:0000 0A 00000000:00000000 00:00000000 00000000 0 0 1 1\n",
            " 100: 00000000000000000000000000000000:1F40 00000000000000000000000000000000:0000 0A 0:0 00:0 0\n",
        ] {
            assert_eq!(in_use(listens), Some(true), "{listens}");
        }
    }

    #[test]
    fn other_ports_do_not_matter() {
        assert_eq!(in_use(""), Some(false));
        // It listens on 8002; and it is a client of a server on port 8000.
        let others = "   0: 00000000:1F42 00000000:0000 0A 0:0 00:0 0\n   1: 0100007F:D431 0100007F:1F40 01 0:0 00:0 0\n";
        assert_eq!(in_use(others), Some(false));
        let last = [others, "   2: 00000000:1F40 00000000:0000 0A 0:0 00:0 0\n"].concat();
        assert_eq!(in_use(&last), Some(true));
    }

    #[test]
    fn a_connection_is_a_request_until_this_side_has_closed_it() {
        let connection =
            |state: u8| in_use(&format!("   0: 0100007F:1F40 0100007F:D431 {state:02X} 0:0 00:0 0\n"));
        for state in [0x01, 0x03, 0x08, 0x0c, 0xff] {
            assert_eq!(connection(state), Some(true), "{state:02x}");
        }
        for state in CLOSED {
            assert_eq!(connection(state), Some(false), "{state:02x}");
        }
    }

    #[test]
    fn garbage_is_an_error() {
        for line in [
            "garbage\n",
            "\n",
            "   0: 00000000 00000000:0000 0A\n",
            "   0: 00000000:XYZ0 00000000:0000 0A\n",
            "   0: 00000000:1F40 00000000:0000\n",
            "   0: 00000000:1F40 00000000:0000 listening\n",
            "   0: 00000000:11F40 00000000:0000 0A\n",
        ] {
            assert_eq!(in_use(line), None, "{line}");
        }
        for table in [&b""[..], b"\n", b"\xff\xfe\n", b"   0: 00000000:1F42 00000000:0000 0A 0:0\n"] {
            assert!(is_any_in_use(table, &[8000]).is_err(), "{table:?}");
        }
    }

    proptest! {
        #[test]
        fn no_bytes_are_taken_for_a_table_without_a_header(bytes in any::<Vec<u8>>()) {
            let has_header = bytes.split(|byte| *byte == b'\n').next().unwrap_or_default();
            prop_assume!(!String::from_utf8_lossy(has_header).contains("local_address"));
            prop_assert!(is_any_in_use(bytes.as_slice(), &[8000]).is_err());
        }
    }

    #[test]
    fn a_socket_of_this_machine_is_found() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let table = || std::io::BufReader::new(std::fs::File::open("/proc/net/tcp").unwrap());
        assert!(is_any_in_use(table(), &[port]).unwrap());
    }
}
