//! A request takes its token from a lease, a guard or a permit, and the server reads the same one.

use super::server::{Server, resource, routes, stored};
use lease_core::hold::{HoldOptions, Keeper, StaleBehaviour};
use lease_core::memory::{MemoryBackend, MemoryDestination, MemoryStore};
use lease_core::{DestinationExt as _, FencingToken, LeaseExt as _};
use lease_http::{FENCING_TOKEN, RequireTokenLayer, TokenSource, present};
use std::sync::Arc;
use std::time::Duration;

const TTL: Duration = Duration::from_mins(1);

fn header(source: &impl TokenSource) -> Vec<u8> {
    let mut request = http::Request::new(());
    present(&mut request, source).unwrap();
    request.headers()[FENCING_TOKEN].as_bytes().to_vec()
}

#[tokio::test]
async fn the_token_of_each_source_arrives() {
    let backend = MemoryBackend::on(MemoryStore::new().unwrap());
    let lease = backend.try_acquire("a lease", TTL).await.unwrap().unwrap();
    let keeper = Keeper::start(Arc::new(backend)).unwrap();
    let guard = keeper.acquire("a guard", TTL, HoldOptions::default()).await.unwrap().unwrap();
    let permit = guard.permit(StaleBehaviour::Fenced).unwrap();
    let sources = [
        (lease.token(), header(&lease)),
        (guard.token(), header(&guard)),
        (guard.token(), header(&permit)),
        (lease.token(), header(lease.token().unwrap())),
    ];
    for (token, header) in sources {
        let token: &FencingToken = token.unwrap();
        assert_eq!(header, token.to_string().into_bytes());
        let destination = MemoryDestination::new();
        destination.trust(token.authority()).await.unwrap();
        let server = Server::start(routes(&destination).layer(RequireTokenLayer::new())).await;
        assert_eq!(server.put(&[("FENCING-TOKEN", &header)], "lands").await.status, 200, "at {}", resource());
        assert_eq!(stored(&destination).await.mark, Some((token.value(), token.grant())));
    }
    permit.committed();
}
