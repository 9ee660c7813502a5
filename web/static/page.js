// What the pages do beyond reading and forms. Everything works without it but live figures.
"use strict";
