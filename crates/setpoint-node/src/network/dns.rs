//! The cluster's DNS server, after the specification "Kubernetes DNS-Based Service Discovery" 1.1.0.
//!
//! It knows the names of the cluster only. The sandbox has no way to other name servers, so that all other
//! names get SERVFAIL, as from a CoreDNS whose upstream is unreachable.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use hickory_proto::op::{Message, MessageType, OpCode, Query, ResponseCode};
use hickory_proto::rr::rdata::{A, CNAME, PTR, SOA, SRV};
use hickory_proto::rr::{Name, RData, Record, RecordType};
use parking_lot::RwLock;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream, UdpSocket};
use tracing::{debug, warn};

mod zone;

pub(crate) use zone::Zone;
use zone::{DOMAIN, Found};

/// Seconds for which answers may be kept; CoreDNS' default for the cluster's zone.
const TTL: u32 = 5;

/// Largest answer over UDP without EDNS (RFC 1035).
const UDP_LIMIT: usize = 512;

/// The current names, shared with the server.
pub(crate) type SharedZone = Arc<RwLock<Arc<Zone>>>;

/// Where queries come in.
pub(crate) struct Sockets {
    udp: UdpSocket,
    tcp: TcpListener,
}

impl Sockets {
    /// Listens on UDP and TCP.
    pub(crate) async fn bind(address: SocketAddr) -> io::Result<Self> {
        Ok(Self { udp: UdpSocket::bind(address).await?, tcp: TcpListener::bind(address).await? })
    }

    /// Answers until dropped.
    pub(crate) async fn serve(self, zone: SharedZone) {
        let tcp_zone = Arc::clone(&zone);
        futures::future::join(serve_udp(self.udp, zone), serve_tcp(self.tcp, tcp_zone)).await;
    }
}

async fn serve_udp(socket: UdpSocket, zone: SharedZone) {
    let mut buffer = vec![0; 4096];
    loop {
        let (size, client) = match socket.recv_from(&mut buffer).await {
            Ok(received) => received,
            // An ICMP answer to an earlier packet of ours; the socket is fine.
            Err(error) => {
                debug!(%error, "DNS over UDP");
                continue;
            }
        };
        let current = Arc::clone(&zone.read());
        if let Some(answer) = answer_bytes(&buffer[..size], &current, true)
            && let Err(error) = socket.send_to(&answer, client).await
        {
            debug!(%error, %client, "DNS answer");
        }
    }
}

async fn serve_tcp(listener: TcpListener, zone: SharedZone) {
    loop {
        match listener.accept().await {
            Ok((stream, _)) => {
                tokio::spawn(serve_connection(stream, Arc::clone(&zone)));
            }
            Err(error) => {
                warn!(%error, "DNS over TCP");
                tokio::time::sleep(std::time::Duration::from_millis(100)).await;
            }
        }
    }
}

async fn serve_connection(mut stream: TcpStream, zone: SharedZone) {
    while let Ok(size) = stream.read_u16().await {
        let mut query = vec![0; usize::from(size)];
        if stream.read_exact(&mut query).await.is_err() {
            return;
        }
        let current = Arc::clone(&zone.read());
        let Some(answer) = answer_bytes(&query, &current, false) else { return };
        let Ok(size) = u16::try_from(answer.len()) else { return };
        if stream.write_u16(size).await.is_err() || stream.write_all(&answer).await.is_err() {
            return;
        }
    }
}

/// The answer to one packet; none for what is not a query.
fn answer_bytes(query: &[u8], zone: &Zone, udp: bool) -> Option<Vec<u8>> {
    let request = Message::from_vec(query).ok()?;
    if request.metadata.message_type != MessageType::Query {
        return None;
    }
    let response = answer(&request, zone);
    let bytes = response.to_vec().ok()?;
    let limit = if request.edns.is_some() { usize::from(request.max_payload()) } else { UDP_LIMIT };
    if udp && bytes.len() > limit {
        return response.truncate().to_vec().ok();
    }
    Some(bytes)
}

fn answer(request: &Message, zone: &Zone) -> Message {
    let mut response = Message::response(request.metadata.id, request.metadata.op_code);
    response.metadata.recursion_desired = request.metadata.recursion_desired;
    response.metadata.recursion_available = true;
    let [query] = request.queries.as_slice() else {
        response.metadata.response_code = ResponseCode::FormErr;
        return response;
    };
    response.add_query(query.clone());
    if request.metadata.op_code != OpCode::Query {
        response.metadata.response_code = ResponseCode::NotImp;
        return response;
    }
    match zone.find(&query.name().to_ascii()) {
        Found::NotOurs => response.metadata.response_code = ResponseCode::ServFail,
        Found::Nothing => {
            response.metadata.authoritative = true;
            response.metadata.response_code = ResponseCode::NXDomain;
            add_authority(&mut response);
        }
        Found::Name(records) => {
            response.metadata.authoritative = true;
            for data in data(query, records) {
                response.add_answer(Record::from_rdata(query.name().clone(), TTL, data));
            }
            if response.answers.is_empty() {
                add_authority(&mut response);
            }
        }
    }
    response
}

/// The records of the asked type at one name.
fn data(query: &Query, records: &zone::Records) -> Vec<RData> {
    let wants = |kind| query.query_type() == kind || query.query_type() == RecordType::ANY;
    let name = |text: &str| Name::from_ascii(text).ok();
    let mut data = Vec::new();
    if let Some(target) = records.alias.as_deref().and_then(name) {
        data.push(RData::CNAME(CNAME(target)));
        return data;
    }
    if wants(RecordType::A) {
        data.extend(records.addresses.iter().map(|address| RData::A(A(*address))));
    }
    if wants(RecordType::SRV) {
        let servers = records.servers.iter().filter_map(|(port, target)| Some((*port, name(target)?)));
        data.extend(servers.map(|(port, target)| RData::SRV(SRV::new(0, 100, port, target))));
    }
    if wants(RecordType::PTR) {
        data.extend(
            records.pointers.iter().filter_map(|target| name(target)).map(|target| RData::PTR(PTR(target))),
        );
    }
    data
}

/// The start of authority: tells how long "there is no such name" may be kept.
fn add_authority(response: &mut Message) {
    let names = (
        Name::from_ascii(DOMAIN),
        Name::from_ascii(format!("ns.dns.{DOMAIN}")),
        Name::from_ascii(format!("hostmaster.{DOMAIN}")),
    );
    if let (Ok(zone), Ok(server), Ok(contact)) = names {
        let data = RData::SOA(SOA::new(server, contact, 1, 7200, 1800, 86400, TTL));
        response.add_authority(Record::from_rdata(zone, TTL, data));
    }
}

/// Where the server listens.
pub(crate) fn address() -> SocketAddr {
    SocketAddr::new(IpAddr::V4(super::DNS_ADDRESS), 53)
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;

    fn ask(zone: &Zone, name: &str, kind: RecordType) -> Message {
        let mut request = Message::query();
        request.add_query(Query::query(Name::from_ascii(name).unwrap(), kind));
        let bytes = answer_bytes(&request.to_vec().unwrap(), zone, true).unwrap();
        Message::from_vec(&bytes).unwrap()
    }

    #[test]
    fn answers_what_it_knows_and_says_what_it_does_not() {
        let zone = zone::tests::example();
        let reply = ask(&zone, "Orders.default.svc.cluster.local.", RecordType::A);
        assert_eq!(reply.metadata.response_code, ResponseCode::NoError);
        assert_eq!(reply.answers[0].data, RData::A(A(Ipv4Addr::new(10, 96, 3, 4))));

        let reply = ask(&zone, "orders.default.svc.cluster.local.", RecordType::AAAA);
        assert_eq!(
            (reply.metadata.response_code, reply.answers.len(), reply.authorities.len()),
            (ResponseCode::NoError, 0, 1)
        );

        let reply = ask(&zone, "nobody.default.svc.cluster.local.", RecordType::A);
        assert_eq!(reply.metadata.response_code, ResponseCode::NXDomain);
        let reply = ask(&zone, "example.com.", RecordType::A);
        assert_eq!(reply.metadata.response_code, ResponseCode::ServFail);

        let reply = ask(&zone, "_redis._tcp.orders-nodes.default.svc.cluster.local.", RecordType::SRV);
        assert_eq!(reply.answers.len(), 2);
        let reply = ask(&zone, "2.1.244.10.in-addr.arpa.", RecordType::PTR);
        let target = Name::from_ascii("orders-0.orders-nodes.default.svc.cluster.local.").unwrap();
        assert_eq!(reply.answers[0].data, RData::PTR(PTR(target)));
    }

    #[test]
    fn too_long_for_udp_is_marked_as_truncated() {
        let zone = zone::tests::many(100);
        let reply = ask(&zone, "many.default.svc.cluster.local.", RecordType::A);
        assert!(reply.metadata.truncation && reply.answers.is_empty());
    }
}
