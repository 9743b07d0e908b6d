// Invitations: the code comes in the fragment of the link, which is sent to nobody, and goes on in the body of a form.
"use strict";

const invitation = document.querySelector("form[data-invitation]");
if (invitation && location.hash.length > 1) {
  invitation.elements.code.value = location.hash.slice(1);
  history.replaceState(null, "", location.pathname); // neither the history nor a bookmark keeps it
  invitation.requestSubmit();
}
