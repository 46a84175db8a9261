//! The plugins `CertificateApproval`, `CertificateSigning` and `CertificateSubjectRestriction`: who may do what in the
//! name of a signer.

use serde_json::Value;

use super::{Attributes, Operation};
use crate::authz::{self, authorize};
use crate::builtin::{requested_certificate, text};
use crate::object::meta_mut;
use crate::policies::StoredPolicies;
use crate::registry::Registry;
use crate::status::Result;

const GROUP: &str = "certificates.k8s.io";
/// The signer of certificates that the API server takes from clients.
const CLIENTS: &str = "kubernetes.io/kube-apiserver-client";

impl Registry {
    pub(super) fn check_certificates(&self, request: &Attributes<'_>, object: &Value) -> Result<()> {
        if request.resource().group != GROUP {
            return Ok(());
        }
        match (request.resource().plural.as_str(), request.subresource, request.operation) {
            ("certificatesigningrequests", "approval", Operation::Update) => {
                self.check_signer(request, object, request.old.unwrap_or(object), "approve")
            }
            ("certificatesigningrequests", "status", Operation::Update) => {
                let old = request.old.unwrap_or(&Value::Null);
                let same = |key: &str| old["status"][key] == object["status"][key];
                if same("certificate") && same("conditions") {
                    return Ok(());
                }
                self.check_signer(request, object, old, "sign")
            }
            ("certificatesigningrequests", "", Operation::Create) => check_subject(request, object),
            ("clustertrustbundles", "", Operation::Create | Operation::Update) => {
                self.check_attester(request, object)
            }
            _ => Ok(()),
        }
    }

    /// Trust in a signer is given by who may attest for it. What the garbage collector writes changes nothing about that.
    fn check_attester(&self, request: &Attributes<'_>, object: &Value) -> Result<()> {
        let signer = text(&object["spec"], "signerName");
        let collects = request.old.is_some_and(|old| {
            let without = |object: &Value| {
                let mut object = object.clone();
                for key in ["ownerReferences", "finalizers", "managedFields", "resourceVersion"] {
                    meta_mut(&mut object).remove(key);
                }
                object
            };
            without(old) == without(object)
        });
        if signer.is_empty() || collects || self.may_for_signer(request, signer, "attest") {
            return Ok(());
        }
        Err(request.forbidden(object, &format!("user not permitted to attest for signerName {signer:?}")))
    }

    /// Refuses the request if the user may not do this for the signer that `of` names, or for all of its domain.
    fn check_signer(&self, request: &Attributes<'_>, object: &Value, of: &Value, verb: &str) -> Result<()> {
        let signer = text(&of["spec"], "signerName");
        if self.may_for_signer(request, signer, verb) {
            return Ok(());
        }
        let why = format!("user not permitted to {verb} requests with signerName {signer:?}");
        Err(request.forbidden(object, &why))
    }

    fn may_for_signer(&self, request: &Attributes<'_>, signer: &str, verb: &str) -> bool {
        let domain = format!("{}/*", signer.split('/').next().unwrap_or_default());
        let may = |name: &str| {
            let asked = authz::Attributes {
                user: request.user,
                verb,
                group: GROUP,
                resource: "signers",
                subresource: "",
                namespace: None,
                name,
                path: None,
            };
            authorize(&asked, &StoredPolicies(&self.store)).allowed
        };
        may(signer) || may(&domain)
    }
}

/// Nobody gets a certificate with which he may do everything.
fn check_subject(request: &Attributes<'_>, object: &Value) -> Result<()> {
    if text(&object["spec"], "signerName") != CLIENTS {
        return Ok(());
    }
    let organizations = match requested_certificate(text(&object["spec"], "request")) {
        Ok(organizations) => organizations,
        Err(why) => return Err(request.forbidden(object, &format!("failed to parse CSR: {why}"))),
    };
    if organizations.iter().any(|organization| organization == authz::MASTERS) {
        let why = format!("use of {CLIENTS} signer with system:masters group is not allowed");
        return Err(request.forbidden(object, &why));
    }
    Ok(())
}
