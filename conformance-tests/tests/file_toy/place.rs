//! A guarded destination in a file.

use super::step;
use lease_conformance::subject::{Place, ServerControl, TestDestination, Unfenced};
use lease_core::{
    Authority, Claim, Claims, FencingToken, GrantId, GuardError, GuardedDestination, Refusal, ResourceName, Stored,
};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

/// Destinations in files of one folder.
#[derive(Clone, Debug)]
pub struct FilePlace {
    pub folder: PathBuf,
}

#[async_trait::async_trait]
impl Place for FilePlace {
    fn kind(&self) -> &'static str {
        "file"
    }

    fn store_of(&self) -> Option<&str> {
        None
    }

    fn url(&self, namespace: &str) -> Option<String> {
        Some(self.folder.join(namespace).display().to_string())
    }

    async fn open(&self, namespace: &str) -> Result<Arc<dyn TestDestination>, GuardError> {
        Ok(Arc::new(FileDestination { path: self.folder.join(namespace) }))
    }

    fn unfenced(&self, _namespace: &str) -> Option<Arc<dyn Unfenced>> {
        None
    }

    fn server(&self) -> Option<Arc<dyn ServerControl>> {
        None
    }

    fn lives_in_process(&self) -> bool {
        false
    }
}

/// One destination.
#[derive(Clone, Debug)]
pub struct FileDestination {
    pub path: PathBuf,
}

#[derive(Default, Serialize, Deserialize)]
struct State {
    trusted: Option<String>,
    /// The latest token admitted, by resource and authority.
    marks: BTreeMap<String, FencingToken>,
    values: BTreeMap<String, String>,
}

impl State {
    fn trusted(&self) -> Option<Authority> {
        self.trusted.as_ref().map(|text| Authority::parse(text).unwrap())
    }

    fn mark(&self, resource: &ResourceName) -> Option<(u64, GrantId)> {
        let mark = self.marks.get(&format!("{resource} {}", self.trusted.as_ref()?))?;
        Some((mark.value(), mark.grant()))
    }
}

impl FileDestination {
    fn write(&self, resource: &ResourceName, token: &FencingToken, value: Option<&str>) -> Result<(), GuardError> {
        step(&self.path, |state: &mut State| {
            let resource = resource.clone();
            if let Err(refusal) = Refusal::judge(state.trusted().as_ref(), state.mark(&resource), token) {
                return Err(GuardError::Refused { resource, refusal });
            }
            state.marks.insert(format!("{resource} {}", token.authority()), token.clone());
            if let Some(value) = value {
                state.values.insert(resource.as_str().into(), value.into());
            }
            Ok(())
        })
    }
}

#[async_trait::async_trait]
impl GuardedDestination for FileDestination {
    fn kind(&self) -> &'static str {
        "file"
    }

    fn claims(&self) -> Claims {
        Claims::of(&[Claim::RefusalUncommittable])
    }

    async fn adopt(&self, expected_old: Option<&Authority>, new: &Authority) -> Result<(), GuardError> {
        step(&self.path, |state: &mut State| {
            let found = state.trusted();
            if found.as_ref() != expected_old {
                return Err(GuardError::AdoptConflict { found });
            }
            state.trusted = Some(new.as_str().into());
            Ok(())
        })
    }

    async fn seal(&self, resource: &ResourceName, token: &FencingToken) -> Result<(), GuardError> {
        self.write(resource, token, None)
    }

    async fn write(&self, resource: &ResourceName, token: &FencingToken, value: &str) -> Result<(), GuardError> {
        self.write(resource, token, Some(value))
    }

    async fn read(&self, resource: &ResourceName) -> Result<Stored, GuardError> {
        Ok(step(&self.path, |state: &mut State| {
            Stored::new(state.values.get(resource.as_str()).cloned(), state.mark(resource))
        }))
    }
}

#[async_trait::async_trait]
impl TestDestination for FileDestination {
    async fn write_plain(&self, resource: &ResourceName, value: &str) -> Result<(), GuardError> {
        step(&self.path, |state: &mut State| state.values.insert(resource.as_str().into(), value.into()));
        Ok(())
    }

    async fn write_ignoring_refusal(
        &self,
        resource: &ResourceName,
        token: &FencingToken,
        value: &str,
    ) -> Result<(), GuardError> {
        self.write(resource, token, Some(value))
    }

    async fn write_and_roll_back(
        &self,
        _resource: &ResourceName,
        _token: &FencingToken,
        _value: &str,
    ) -> Option<Result<(), GuardError>> {
        None
    }
}
