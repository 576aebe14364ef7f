"use strict";
// The page begins: the model is the one in this file, or that behind the server it came from.
(function (S) {
  const server = S.app.data("data-server");
  S.mind = server ? S.backend.remote(server.address) : S.backend.local(S.app.data("data-model"));
  if (server) document.querySelector("footer").append(" Python on this machine computes for Selection and State surgery.");
  S.mind.info().then((info) => {
    for (const place of document.querySelectorAll(".model-name")) place.textContent = info.name;
  });
  S.app.begin();
})(globalThis.statewise);
