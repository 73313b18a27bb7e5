//! etcd: the guard's own requests, and its conditions for the caller's own transaction.

use super::broken::{assert_flaws_are_found, assert_look_is_found};
use super::programs::{own_scenes, scenes};
use super::{Blind, Own, Site, explore};
use etcd_client::{Client, Txn, TxnOp};
use lease_core::{FencingToken, GuardError, ResourceName};
use lease_etcd::{EtcdDestination, EtcdGuard};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

/// The caller's own transaction, on etcd's own client.
struct OwnTransaction {
    destination: EtcdDestination,
    raw: Client,
    prepared: Mutex<BTreeMap<(usize, String), EtcdGuard>>,
}

#[async_trait::async_trait]
impl Own for OwnTransaction {
    async fn prepare(&self, actor: usize, resource: &ResourceName, token: &FencingToken) -> Result<(), GuardError> {
        let guard = self.destination.open(resource, token).await?;
        self.prepared.lock().unwrap().insert((actor, resource.as_str().into()), guard);
        Ok(())
    }

    async fn land(&self, actor: usize, resource: &ResourceName) -> bool {
        let guard = self.prepared.lock().unwrap().get(&(actor, resource.as_str().into())).cloned();
        let Some(guard) = guard else { return false };
        let put = TxnOp::put(format!("mine/{resource}"), actor.to_string(), None);
        let txn = Txn::new().when(guard.compares()).and_then([put]);
        self.raw.kv_client().txn(txn).await.unwrap().succeeded()
    }

    async fn landed(&self, resource: &ResourceName) -> Option<usize> {
        let found = self.raw.kv_client().get(format!("mine/{resource}"), None).await.unwrap();
        found.kvs().first().map(|kv| kv.value_str().unwrap().parse().unwrap())
    }
}

#[tokio::test]
async fn etcd_is_right_in_every_order() {
    let server = lease_servers::etcd(&lease_servers::EtcdSetup::default()).unwrap();
    let raw = Client::connect([format!("127.0.0.1:{}", server.port())], None).await.unwrap();
    let open = async |namespace: &str, edits: &[(&str, &str)]| {
        let url = format!("{}?namespace={namespace}&call_timeout_ms=60000&connect_timeout_ms=60000", server.url());
        EtcdDestination::connect_edited(&url, edits).await.unwrap()
    };
    let with_own = |destination: EtcdDestination| {
        let own = OwnTransaction { destination: destination.clone(), raw: raw.clone(), prepared: Mutex::default() };
        Site { own: Some(Arc::new(own)), ..Site::new(destination) }
    };
    let site = Site::new(open("honest", &[]).await);
    let tally = explore(&site, "scenes", &scenes()).await;
    println!("etcd: {tally}");
    tally.assert_honest();
    let own = with_own(open("honest", &[]).await);
    let tally = explore(&own, "own", &own_scenes()).await;
    println!("etcd, the caller's own transaction: {tally}");
    tally.assert_honest();
    assert!(tally.not_landed > 0, "{tally}");

    for (number, check) in ["guard compares the mark", "guard compares the authority"].into_iter().enumerate() {
        let broken = with_own(open(&format!("broken{number}"), &[(check, "")]).await);
        let tally = explore(&broken, &format!("broken{number}"), &own_scenes()).await;
        println!("etcd saboteur without `{check}`: {tally}");
        assert!(tally.differences > 0, "{check}");
    }
    assert_flaws_are_found(&site).await;
    let blind = Blind::Edited(Arc::new(open("honest", &[("guard compares the mark", "")]).await));
    assert_look_is_found(&Site { blind: Some(blind), ..site }).await;
}
