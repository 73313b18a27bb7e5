//! How a grant is made.

use crate::backend::{NO_RECORD, RedisBackend, bad_incarnation, millis};
use crate::claims::MAX_VALUE;
use crate::error::{foreign, unexpected};
use crate::link::Call;
use crate::wire::Granting;
use lease_core::{Advice, Attempt, Effect, Held, Lease, LeaseError, Operation};
use std::time::Duration;

impl RedisBackend {
    /// The grant of an attempt, or why there is none.
    pub(crate) async fn grant(
        &self,
        call: &Call<'_>,
        attempt: &Attempt,
        granted_ttl: Duration,
    ) -> Result<Result<Lease, Held>, LeaseError> {
        for _ in 0..INCARNATION_TRIES {
            let sent = attempt.begin_send(self.options.clock.now(), granted_ttl)?;
            let first_sent = sent.first_sent();
            let answer = self.ask_for_grant(call, attempt, granted_ttl).await;
            if !matches!(&answer, Err(error) if error.effect() == Effect::Unknown) {
                sent.answered();
            }
            let (value, incarnation) = match answer? {
                Granting::Granted { value, incarnation } => (value, incarnation),
                Granting::Held { remaining_us } => {
                    return Ok(Err(Held::for_another(Some(Duration::from_micros(remaining_us)))));
                }
                // The store lost its data since this instance connected: a new history begins.
                _ => {
                    self.make_incarnation(call).await?;
                    continue;
                }
            };
            let authority = self.options.authority("redis", &incarnation)?;
            let token = attempt.token(authority, value)?;
            return Ok(Ok(Lease::granted(attempt, Some(token), granted_ttl, first_sent, self.options.clock.clone())));
        }
        Err(LeaseError::Store {
            operation: Operation::Acquire,
            reason: "somebody removes the namespace's incarnation as fast as it is made".into(),
            effect: Effect::None,
            advice: Advice::TryAgain,
            source: None,
        })
    }

    async fn ask_for_grant(
        &self,
        call: &Call<'_>,
        attempt: &Attempt,
        granted_ttl: Duration,
    ) -> Result<Granting, LeaseError> {
        let resource = attempt.resource();
        let (lease, incarnation) = (self.keys.lease(resource), self.keys.incarnation());
        let spent = self.keys.spent(resource, attempt.owner());
        let args = [
            &*attempt.owner().reveal(),
            &self.keep_ms(),
            &attempt.grant().to_hex(),
            &millis(granted_ttl),
            attempt.holder().as_str(),
            &attempt.floor().to_string(),
            if self.replicas.is_some() { "1" } else { "0" },
        ];
        let reply = call.eval(&self.scripts.acquire, &[&lease, &incarnation, &spent], &args).await;
        let texts = reply.map_err(|e| e.into_lease(call, Some(resource)))?.into_texts();
        match Granting::decode(&texts).ok_or_else(|| unexpected(Operation::Acquire))? {
            Granting::Over => {
                Err(LeaseError::AttemptOver { resource: resource.clone(), reason: "its grant has ended" })
            }
            Granting::Foreign => Err(foreign(resource, NO_RECORD)),
            Granting::BadIncarnation => Err(bad_incarnation(&incarnation)),
            Granting::Exhausted => Err(LeaseError::TokenRange { value: MAX_VALUE.saturating_add(1) }),
            answer => Ok(answer),
        }
    }
}

/// How often one acquire makes a new incarnation, should somebody keep removing it.
const INCARNATION_TRIES: usize = 3;
