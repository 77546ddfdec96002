//! How the processes of a run find each other.
//!
//! ```text
//! process 0        hello ◄─► every other one · then says to all where the others are, or why it comes to nothing
//! process i        hello ◄─► process 0 · where are the others? · hello ◄─► processes 1 … i−1, then i+1 …
//! ```
//!
//! A hello says who somebody is, where it can be reached, and hashes of what all must agree on. Connections that do not begin like that are closed without
//! another word. All of it has a limit, after which it says who is missing.

use std::io::{self, Read, Write};
use std::net::{TcpListener, TcpStream, ToSocketAddrs};
use std::time::{Duration, Instant};

/// What every connection begins with.
const MAGIC: &[u8; 8] = b"forebay\n";
/// Of this way to talk.
const VERSION: u32 = 1;
/// Between two looks at who has come, and between two tries to reach somebody.
const PAUSE: Duration = Duration::from_millis(5);
/// A connection says its hello within this time.
const GREETING: Duration = Duration::from_secs(5);
/// Bytes of an address, and of what process 0 has to say.
const MOST_ADDRESS: usize = 255;
const MOST_NEWS: usize = 1 << 20;

/// Something that all processes must agree on: its name, and a hash or number.
pub type Fact = (&'static str, u64);

/// A process that is about to join a run.
pub struct Joining<'a> {
    /// Which one it is, counted from 0.
    pub process: u32,
    /// For each process how many ranks it runs.
    pub ranks: &'a [u32],
    /// Where it can be reached.
    pub listener: TcpListener,
    /// The address that the others reach it at.
    pub address: String,
    /// The address of process 0.
    pub rendezvous: String,
    /// What all must agree on, in the same order.
    pub facts: &'a [Fact],
    /// How long to wait for the others.
    pub limit: Duration,
    /// Looked at while it waits: a reason to give up.
    pub hopeless: &'a mut dyn FnMut() -> Option<String>,
}

/// Why a process cannot join a run.
#[derive(Debug, thiserror::Error)]
pub enum JoinError {
    /// Some did not come.
    #[error("after {} s {} of {processes} processes are missing: {}", .limit.as_secs(), .missing.len(), names(.missing))]
    Missing {
        /// Which.
        missing: Vec<u32>,
        /// Of how many.
        processes: usize,
        /// How long it waited.
        limit: Duration,
    },
    /// A process cannot be reached.
    #[error("process {process} cannot be reached at {address} within {} s: {error}", .limit.as_secs())]
    Unreachable {
        /// Which.
        process: u32,
        /// Where it should be.
        address: String,
        /// How long it was tried.
        limit: Duration,
        /// The last error.
        error: io::Error,
    },
    /// They are about to do different things.
    #[error(
        "process {process} has another {what} than process {me}: start all processes with the same program, files and options"
    )]
    Differs {
        /// Who.
        process: u32,
        /// This one.
        me: u32,
        /// What.
        what: &'static str,
    },
    /// Process 0 has given up.
    #[error("{0}")]
    Refused(String),
    /// Somebody came who should not.
    #[error("two processes say that they are process {0}: every one has a --host-index of its own")]
    Twice(u32),
    /// There is no hope that the others come.
    #[error("{0}")]
    Hopeless(String),
    /// The system refuses.
    #[error("the connection to the other processes failed: {0}")]
    Socket(#[source] io::Error),
}

fn names(processes: &[u32]) -> String {
    processes.iter().map(|p| p.to_string()).collect::<Vec<_>>().join(", ")
}

/// What a process says of itself.
#[derive(Debug, PartialEq, Eq)]
struct Hello {
    process: u32,
    address: String,
    facts: Vec<u64>,
}

impl Joining<'_> {
    /// Connects to all other processes: for each of the run a stream, none for this one.
    pub(super) fn connect(mut self) -> Result<Vec<Option<TcpStream>>, JoinError> {
        let deadline = Instant::now() + self.limit;
        let mut streams: Vec<Option<TcpStream>> = self.ranks.iter().map(|_| None).collect();
        if self.process == 0 {
            self.gather(&mut streams, deadline)?;
            return Ok(streams);
        }
        let rendezvous = self.rendezvous.clone();
        let mut first = self.reach(0, &rendezvous, deadline)?;
        let addresses = self.news(&mut first, deadline)?;
        streams[0] = Some(first);
        for process in 1..self.process {
            let address = addresses.get(process as usize).cloned().unwrap_or_default();
            streams[process as usize] = Some(self.reach(process, &address, deadline)?);
        }
        let higher: Vec<u32> = (self.process + 1..self.ranks.len() as u32).collect();
        self.accept(&higher, &mut streams, deadline)?;
        Ok(streams)
    }

    /// Process 0: waits for all, and tells them where the others are.
    fn gather(&mut self, streams: &mut [Option<TcpStream>], deadline: Instant) -> Result<(), JoinError> {
        let others: Vec<u32> = (1..self.ranks.len() as u32).collect();
        let came = self.accept(&others, streams, deadline);
        let news = match &came {
            Ok(addresses) => format!("+{}", addresses.join("\n")),
            Err(error) => format!("-{error}"),
        };
        let mut told = Ok(());
        for stream in streams.iter_mut().flatten() {
            let result =
                stream.write_all(&(news.len() as u32).to_le_bytes()).and_then(|()| stream.write_all(news.as_bytes()));
            // The others are told nevertheless.
            told = told.and(result);
        }
        came.map(drop).and(told.map_err(JoinError::Socket))
    }

    /// What process 0 says: the addresses of all.
    fn news(&mut self, from: &mut TcpStream, deadline: Instant) -> Result<Vec<String>, JoinError> {
        let gone = |error: io::Error| match error.kind() {
            io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => {
                JoinError::Missing { missing: vec![0], processes: self.ranks.len(), limit: self.limit }
            }
            _ => JoinError::Refused("process 0 has ended before all processes were there".into()),
        };
        // Process 0 has the same limit, and should be the one that says who is missing.
        let left = deadline.saturating_duration_since(Instant::now()) + GREETING;
        from.set_read_timeout(Some(left)).map_err(JoinError::Socket)?;
        let mut length = [0; 4];
        from.read_exact(&mut length).map_err(gone)?;
        let length = u32::from_le_bytes(length) as usize;
        if length > MOST_NEWS {
            return Err(JoinError::Refused("what process 0 says is too long".into()));
        }
        let mut bytes = vec![0; length];
        from.read_exact(&mut bytes).map_err(gone)?;
        let text = String::from_utf8_lossy(&bytes);
        match text.strip_prefix('+') {
            Some(addresses) => Ok(addresses.split('\n').map(str::to_string).collect()),
            None => Err(JoinError::Refused(text.trim_start_matches('-').to_string())),
        }
    }

    /// Reaches a process that may not be there yet.
    fn reach(&mut self, process: u32, address: &str, deadline: Instant) -> Result<TcpStream, JoinError> {
        loop {
            let error = match self.call(process, address) {
                Ok(Ok(stream)) => return Ok(stream),
                Ok(Err(error)) => return Err(error),
                Err(error) => error,
            };
            let (address, limit) = (address.to_string(), self.limit);
            self.pause(deadline, || JoinError::Unreachable { process, address, limit, error })?;
        }
    }

    /// Tries once: an inner error is final.
    fn call(&self, process: u32, address: &str) -> io::Result<Result<TcpStream, JoinError>> {
        let place = address.to_socket_addrs()?.next().ok_or(io::ErrorKind::NotFound)?;
        let mut stream = TcpStream::connect_timeout(&place, GREETING)?;
        stream.set_read_timeout(Some(GREETING))?;
        stream.set_write_timeout(Some(GREETING))?;
        self.write_hello(&mut stream)?;
        // (Others answer when they come to it, which may be after everybody before this one.)
        stream.set_read_timeout(Some(self.limit.max(PAUSE)))?;
        let hello = read_hello(&mut stream, self.facts.len())?;
        Ok(self.check(&hello, &[process]).map(|()| stream))
    }

    /// Waits for these processes; returns where all are, as far as they have said it.
    fn accept(
        &mut self,
        wanted: &[u32],
        streams: &mut [Option<TcpStream>],
        deadline: Instant,
    ) -> Result<Vec<String>, JoinError> {
        let mut addresses = vec![String::new(); self.ranks.len()];
        addresses[self.process as usize] = self.address.clone();
        self.listener.set_nonblocking(true).map_err(JoinError::Socket)?;
        let missing = |streams: &[Option<TcpStream>]| -> Vec<u32> {
            wanted.iter().copied().filter(|p| streams[*p as usize].is_none()).collect()
        };
        while !missing(streams).is_empty() {
            match self.listener.accept() {
                Ok((stream, _)) => {
                    let Ok((stream, hello)) = self.greet(stream) else {
                        // Whoever is no process of a run is sent away, and postpones nothing.
                        let (missing, processes, limit) = (missing(streams), self.ranks.len(), self.limit);
                        self.in_time(deadline, || JoinError::Missing { missing, processes, limit })?;
                        continue;
                    };
                    self.check(&hello, wanted)?;
                    let place = &mut streams[hello.process as usize];
                    if place.is_some() {
                        return Err(JoinError::Twice(hello.process));
                    }
                    *place = Some(stream);
                    addresses[hello.process as usize] = hello.address;
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    let (missing, processes, limit) = (missing(streams), self.ranks.len(), self.limit);
                    self.pause(deadline, || JoinError::Missing { missing, processes, limit })?;
                }
                // A connection that was given up before it was looked at.
                Err(error) if error.kind() == io::ErrorKind::ConnectionAborted => {}
                Err(error) => return Err(JoinError::Socket(error)),
            }
        }
        Ok(addresses)
    }

    fn greet(&self, mut stream: TcpStream) -> io::Result<(TcpStream, Hello)> {
        stream.set_nonblocking(false)?;
        stream.set_read_timeout(Some(GREETING))?;
        stream.set_write_timeout(Some(GREETING))?;
        let hello = read_hello(&mut Hurried::new(&mut stream), self.facts.len())?;
        self.write_hello(&mut stream)?;
        Ok((stream, hello))
    }

    /// Waits a moment, unless it is too late or hopeless.
    fn pause(&mut self, deadline: Instant, late: impl FnOnce() -> JoinError) -> Result<(), JoinError> {
        self.in_time(deadline, late)?;
        std::thread::sleep(PAUSE);
        Ok(())
    }

    /// Is it neither too late nor hopeless?
    fn in_time(&mut self, deadline: Instant, late: impl FnOnce() -> JoinError) -> Result<(), JoinError> {
        if let Some(why) = (self.hopeless)() {
            return Err(JoinError::Hopeless(why));
        }
        if Instant::now() >= deadline { Err(late()) } else { Ok(()) }
    }

    /// Is somebody one of those that are waited for, and about to do the same?
    fn check(&self, hello: &Hello, wanted: &[u32]) -> Result<(), JoinError> {
        let differs = |what| Err(JoinError::Differs { process: hello.process, me: self.process, what });
        if hello.facts.len() != self.facts.len() {
            return differs("version");
        }
        if let Some(((what, _), _)) = self.facts.iter().zip(&hello.facts).find(|((_, own), theirs)| own != *theirs) {
            return differs(what);
        }
        if hello.process == self.process {
            return Err(JoinError::Twice(self.process));
        }
        if wanted.contains(&hello.process) { Ok(()) } else { differs("idea of who is where") }
    }

    /// `magic · u32 version · u32 process · u8 length, address · u32 count, u64 facts`
    fn write_hello(&self, to: &mut impl Write) -> io::Result<()> {
        let mut bytes = MAGIC.to_vec();
        bytes.extend(VERSION.to_le_bytes());
        bytes.extend(self.process.to_le_bytes());
        let address = &self.address.as_bytes()[..self.address.len().min(MOST_ADDRESS)];
        bytes.push(address.len() as u8);
        bytes.extend(address);
        bytes.extend((self.facts.len() as u32).to_le_bytes());
        self.facts.iter().for_each(|(_, value)| bytes.extend(value.to_le_bytes()));
        to.write_all(&bytes)
    }
}

/// A stream that is read for [`GREETING`] in all, however slowly its bytes come.
struct Hurried<'a> {
    stream: &'a mut TcpStream,
    until: Instant,
}

impl Hurried<'_> {
    fn new(stream: &mut TcpStream) -> Hurried<'_> {
        Hurried { stream, until: Instant::now() + GREETING }
    }
}

impl Read for Hurried<'_> {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        let left = self.until.saturating_duration_since(Instant::now());
        // (A timeout of zero would be none.)
        self.stream.set_read_timeout(Some(left.max(Duration::from_millis(1))))?;
        if left.is_zero() { Err(io::ErrorKind::TimedOut.into()) } else { self.stream.read(bytes) }
    }
}

/// Reads a hello; one of another version, or with another number of facts, has none.
fn read_hello(from: &mut impl Read, facts: usize) -> io::Result<Hello> {
    fn bytes<const N: usize>(from: &mut impl Read) -> io::Result<[u8; N]> {
        let mut bytes = [0; N];
        from.read_exact(&mut bytes)?;
        Ok(bytes)
    }
    if bytes(from)? != *MAGIC {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "it is no process of a run"));
    }
    let version = u32::from_le_bytes(bytes(from)?);
    let process = u32::from_le_bytes(bytes(from)?);
    if version != VERSION {
        return Ok(Hello { process, address: String::new(), facts: vec![] });
    }
    let [length] = bytes(from)?;
    let mut address = vec![0; usize::from(length)];
    from.read_exact(&mut address)?;
    let address = String::from_utf8_lossy(&address).into_owned();
    let count = u32::from_le_bytes(bytes(from)?) as usize;
    let mut hello = Hello { process, address, facts: vec![] };
    if count == facts {
        for _ in 0..facts {
            hello.facts.push(u64::from_le_bytes(bytes(from)?));
        }
    }
    Ok(hello)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs these processes on threads; the result of each.
    fn meet(
        present: &[u32],
        ranks: &[u32],
        facts: &(dyn Fn(u32) -> u64 + Sync),
        limit: Duration,
    ) -> Vec<Result<usize, String>> {
        let first = TcpListener::bind("127.0.0.1:0").expect("a port");
        let rendezvous = first.local_addr().expect("an address").to_string();
        let first = &first;
        let one = |process: u32| {
            let listener = match process {
                0 => first.try_clone().expect("a listener"),
                _ => TcpListener::bind("127.0.0.1:0").expect("a port"),
            };
            let address = listener.local_addr().expect("an address").to_string();
            let (rendezvous, facts) = (rendezvous.clone(), [("plan", 7), ("seed", facts(process))]);
            let hopeless: &mut dyn FnMut() -> Option<String> = &mut || None;
            let joining = Joining { process, ranks, listener, address, rendezvous, facts: &facts, limit, hopeless };
            let streams = joining.connect().map_err(|error| error.to_string())?;
            assert!(streams[process as usize].is_none());
            Ok(streams.iter().flatten().count())
        };
        std::thread::scope(|scope| {
            let threads: Vec<_> = present.iter().map(|p| scope.spawn(move || one(*p))).collect();
            threads.into_iter().map(|t| t.join().expect("it does not panic")).collect()
        })
    }

    #[test]
    fn all_find_each_other() {
        for n in 1..6usize {
            let present: Vec<u32> = (0..n as u32).rev().collect();
            let met = meet(&present, &vec![1; n], &|_| 5, Duration::from_secs(20));
            assert!(met.iter().all(|m| *m == Ok(n - 1)), "{met:?}");
        }
    }

    #[test]
    fn who_is_missing_is_named() {
        let met = meet(&[0, 2], &[1, 1, 1, 1], &|_| 5, Duration::from_millis(300));
        let wanted = "after 0 s 2 of 4 processes are missing: 1, 3";
        assert_eq!(met, [Err(wanted.to_string()), Err(wanted.to_string())]);
        let met = meet(&[1], &[1, 1], &|_| 5, Duration::from_millis(300));
        // (Nobody answers behind the address of process 0.)
        assert!(
            met[0].as_ref().is_err_and(|error| error.starts_with("process 0 cannot be reached at 127.0.0.1:")),
            "{met:?}"
        );
    }

    #[test]
    fn who_does_something_else_is_named() {
        let met = meet(&[0, 1, 2], &[1, 1, 1], &|p| u64::from(p == 1), Duration::from_secs(5));
        let errors: Vec<&String> = met.iter().filter_map(|m| m.as_ref().err()).collect();
        assert_eq!(errors.len(), 3, "{met:?}");
        assert!(errors.iter().any(|e| e.starts_with("process 1 has another seed than process 0")), "{errors:?}");
    }

    /// Strangers are sent away, and do not disturb.
    #[test]
    fn hellos_are_checked() {
        let facts = [("plan", 1u64), ("seed", 2)];
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let hopeless: &mut dyn FnMut() -> Option<String> = &mut || None;
        let joining = Joining {
            process: 3,
            ranks: &[1, 1, 1, 1],
            listener,
            address: "host:7".into(),
            rendezvous: String::new(),
            facts: &facts,
            limit: Duration::ZERO,
            hopeless,
        };
        let mut bytes = vec![];
        joining.write_hello(&mut bytes).expect("memory does not fail");
        let hello = read_hello(&mut bytes.as_slice(), 2).expect("a hello");
        assert_eq!(hello, Hello { process: 3, address: "host:7".into(), facts: vec![1, 2] });
        assert!((0..bytes.len()).all(|end| read_hello(&mut &bytes[..end], 2).is_err()));
        assert!(read_hello(&mut b"GET / HTTP/1.1\r\n\r\n".as_slice(), 2).is_err());
        // Another number of facts, another version: none, which differs from all.
        assert_eq!(read_hello(&mut bytes.as_slice(), 3).expect("a hello").facts, [0u64; 0]);
        bytes[8] = 9;
        assert_eq!(read_hello(&mut bytes.as_slice(), 2).expect("a hello").facts, [0u64; 0]);
    }
}
