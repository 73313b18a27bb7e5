//! Ending somebody else's grant, on an operator's order.

use crate::backend::{LEAST_TOMBSTONE, RedisBackend, millis};
use crate::error::unexpected;
use lease_core::{ForceRelease, Forced, LeaseError, Operation};

impl RedisBackend {
    pub(crate) async fn force(&self, order: &ForceRelease) -> Result<Forced, LeaseError> {
        let (operation, resource) = (Operation::ForceRelease, order.resource());
        let keys = [&*self.keys.lease(resource)];
        let args =
            [&*order.value().to_string(), &self.keep_ms(), &self.keys.spent_prefix(resource), &millis(LEAST_TOMBSTONE)];
        let texts = self.answer(operation, resource, &self.scripts.force, &keys, &args).await?;
        decode(&texts).ok_or_else(|| unexpected(operation))
    }
}

fn decode(texts: &[String]) -> Option<Forced> {
    let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
    Some(match texts.as_slice() {
        ["done"] => Forced::Ended,
        ["not held"] => Forced::NotHeld,
        ["other", value] => Forced::OtherGrant { value: value.parse().ok()? },
        _ => return None,
    })
}
